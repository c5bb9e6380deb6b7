"""Decode steps with one rank and with two, and the sum of the two replaced: what is it that they wait for?

All engines are there at once and take turns, round by round. A rank has its share of the threads. The other way to add
is the one that the engine takes where nothing can be compiled: gloo, which sends over sockets.

vLLM: none
"""

from __future__ import annotations

import argparse
import gc
from typing import Any
from unittest.mock import patch

from folovllm.bench.options import add_batch_sizes, add_common, add_model, add_number, source
from folovllm.bench.report import Line, Report, Row
from folovllm.bench.runs import make_engine
from folovllm.bench.workload import progress_bar, vocab_size
from folovllm.engine import ranks as starting
from folovllm.engine.llm_engine import LLMEngine
from workshop.bench.decode import BLOCK_SIZE, DecodingBatch

COLUMNS = ["ranks", "sums", "requests", "step_ms", "ratio"]
WAYS = {(1, "none"): None, (2, "shared memory"): None, (2, "gloo"): "to be compared"}
"""Ranks, and how they add -> why the kernels are not to be used for it."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Decode steps on this CPU with one rank and with two, which add in shared memory or by gloo."
    add_model(command)
    add_batch_sizes(command, 1, 8)
    add_number(command, "--context", default=64, help="prompt tokens of each")
    add_number(command, "--steps", default=40, help="measured steps of a round", least=10)
    add_common(command)


def run(args: argparse.Namespace) -> Report:
    most, longest = max(args.batch_sizes), args.context + args.rounds * args.steps + 200
    sizes: dict[str, Any] = {"max_model_len": longest, "num_kv_blocks": most * -(-longest // BLOCK_SIZE) + 1}
    lines: list[Line] = []
    with source(args) as model, progress_bar(len(WAYS) + len(args.batch_sizes)) as tick:
        engines = {}
        for (ranks, sums), reason in WAYS.items():
            tick(f"loading: {ranks}, {sums}")
            with patch.object(starting, "unavailable_reason", lambda reason=reason: reason):
                engines[ranks, sums] = make_engine(model, args.dtype, "cpu", tensor_parallel_size=ranks, **sizes)
        vocab = vocab_size(model)
        for requests in args.batch_sizes:
            tick(f"{requests} requests")
            lines += _measure(engines, requests, vocab, args)
    each = f"The fastest tenth of {args.steps} steps, the median of {args.rounds} rounds"
    notes = [f"{each}; all sequences decode, greedy."]
    return Report.of(args, f"Decode steps with one rank and with two, {model.label}", COLUMNS, lines, notes)


def _measure(
    engines: dict[tuple[int, str], LLMEngine], requests: int, vocab: int, args: argparse.Namespace
) -> list[Line]:
    batches = {way: DecodingBatch(engine, requests, args.context, vocab) for way, engine in engines.items()}
    rounds: dict[tuple[int, str], list[float]] = {way: [] for way in engines}
    for _ in range(args.rounds):
        for way, batch in batches.items():
            gc.collect()  # here, and not in the middle of a step
            steps = sorted(batch.step() for _ in range(args.steps))
            rounds[way].append(1e3 * steps[args.steps // 10])
    for batch in batches.values():
        batch.end()
    alone = sorted(rounds[1, "none"])[args.rounds // 2]
    found: list[Line] = []
    for (ranks, sums), taken in rounds.items():
        facts: Row = {"ranks": ranks, "sums": sums, "requests": requests}
        found.append((facts | {"ratio": alone / sorted(taken)[args.rounds // 2]}, {"step_ms": taken}))
    return found
