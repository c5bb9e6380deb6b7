"""Decode steps of one process with one thread and with more, and of two ranks: does splitting a model pay on one CPU?

All take turns, round by round, transformers too. Two ranks share the threads. They add in shared memory, or by the way
that the engine takes where nothing can be compiled: gloo, which sends over sockets.

vLLM: none
"""

from __future__ import annotations

import argparse
import gc
import time
from typing import Any, NamedTuple, Protocol
from unittest.mock import patch

import torch

from folovllm.bench.options import add_batch_sizes, add_common, add_model, add_number, source
from folovllm.bench.report import Line, Report, Row
from folovllm.bench.runs import make_engine
from folovllm.bench.workload import progress_bar, random_prompts, vocab_size
from folovllm.config import ModelConfig
from folovllm.engine import ranks as starting
from folovllm.model_loader import ModelLoader
from workshop.bench.decode import BLOCK_SIZE, WARM_UP_STEPS, DecodingBatch

COLUMNS = ["engine", "ranks", "threads", "sums", "requests", "step_ms", "ratio"]


class Way(NamedTuple):
    """One who takes turns. `threads` are those of all its ranks together."""

    engine: str
    ranks: int
    threads: int
    sums: str = "none"


class Batch(Protocol):
    def step(self) -> float:
        """Each sequence gets a token; what it took, in seconds."""

    def end(self) -> None:
        """The sequences leave the engine."""


class TransformersBatch:
    """The same prompts, computed by transformers: one forward a step, over the cache that it made before."""

    def __init__(self, model: Any, count: int, prompt_len: int, vocab: int) -> None:
        from transformers import DynamicCache

        self.model, self.cache = model, DynamicCache(config=model.config)
        self.input_ids = torch.tensor(random_prompts([prompt_len] * count, vocab, count))
        for _ in range(1 + WARM_UP_STEPS):
            self.step()

    @torch.inference_mode()
    def step(self) -> float:
        start = time.perf_counter()
        logits = self.model(self.input_ids, past_key_values=self.cache, logits_to_keep=1).logits
        self.input_ids = logits[:, -1].argmax(-1, keepdim=True)
        return time.perf_counter() - start

    def end(self) -> None:
        del self.cache


def add_arguments(command: argparse.ArgumentParser) -> None:
    text = "Decode steps on this CPU with one thread, with more, and with two ranks, which add in shared memory or by"
    command.description = f"{text} gloo; transformers beside them."
    add_model(command)
    add_batch_sizes(command, 1, 8)
    add_number(command, "--context", default=64, help="prompt tokens of each")
    add_number(command, "--steps", default=40, help="measured steps of a round", least=10)
    add_common(command)


def run(args: argparse.Namespace) -> Report:
    most, longest = max(args.batch_sizes), args.context + args.rounds * args.steps + 200
    sizes: dict[str, Any] = {"max_model_len": longest, "num_kv_blocks": most * -(-longest // BLOCK_SIZE) + 1}
    lines: list[Line] = []
    threads = torch.get_num_threads()
    counts = sorted({1, threads})
    ours = [Way("folovllm", 1, n) for n in counts]
    ours += [Way("folovllm", 2, max(2, threads), sums) for sums in ("shared memory", "gloo")]
    with source(args) as model, progress_bar(len(ours) + 1 + len(args.batch_sizes)) as tick:
        engines: dict[Way, Any] = {}
        for way in ours:
            tick(f"loading: {way.ranks}, {way.sums}")
            reason = "to be compared" if way.sums == "gloo" else None
            with patch.object(starting, "unavailable_reason", lambda reason=reason: reason):
                engines[way] = make_engine(model, args.dtype, "cpu", tensor_parallel_size=way.ranks, **sizes)
        tick("loading: transformers")
        theirs = ModelLoader(ModelConfig(model.path, dtype=args.dtype, load_format=model.load_format)).load("cpu")
        engines |= dict.fromkeys([Way("transformers", 1, n) for n in counts], theirs)
        vocab = vocab_size(model)
        for requests in args.batch_sizes:
            tick(f"{requests} requests")
            lines += _measure(engines, requests, vocab, args)
    each = f"The fastest tenth of {args.steps} steps, the median of {args.rounds} rounds"
    notes = [f"{each}; all sequences decode, greedy. ratio: the time of one rank with all threads over this one's."]
    return Report.of(args, f"Decode steps with threads and with ranks, {model.label}", COLUMNS, lines, notes)


def _measure(engines: dict[Way, Any], requests: int, vocab: int, args: argparse.Namespace) -> list[Line]:
    batches: dict[Way, Batch] = {}
    for way, engine in engines.items():
        make = TransformersBatch if way.engine == "transformers" else DecodingBatch
        batches[way] = make(engine, requests, args.context, vocab)
    rounds: dict[Way, list[float]] = {way: [] for way in engines}
    threads = torch.get_num_threads()
    for _ in range(args.rounds):
        for way, batch in batches.items():
            torch.set_num_threads(max(1, way.threads // way.ranks))
            gc.collect()  # here, and not in the middle of a step
            steps = sorted(batch.step() for _ in range(args.steps))
            rounds[way].append(1e3 * steps[args.steps // 10])
    torch.set_num_threads(threads)
    for batch in batches.values():
        batch.end()
    middle = {way: sorted(taken)[args.rounds // 2] for way, taken in rounds.items()}
    alone = middle[Way("folovllm", 1, threads)]
    found: list[Line] = []
    for way, taken in rounds.items():
        facts: Row = way._asdict() | {"requests": requests, "ratio": alone / middle[way]}
        found.append((facts, {"step_ms": taken}))
    return found
