"""A decode step, taken apart: what the host does before and after the model, and what the model takes.

    schedule ─▶ prepare ─▶ forward ─▶ sampling ─▶ prepare (tokens into the batch) ─▶ update ─▶ outputs
    └──────host──────┘     └──── the model ────┘  └───────────────────host──────────────────────────┘

The model is the one that ships here, and all sequences decode. The engine's records say when each part began; what
computes the model and draws is given to it with a clock. What else it does to launch a step is "prepare". Whatever of a
step is not the model's counts as the host's, also waiting for its tokens ("other").

vLLM: none
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from folovllm.bench.options import add_batch_sizes, add_common, add_number
from folovllm.bench.report import Report, Row, medians
from folovllm.bench.runs import make_engine
from folovllm.bench.workload import BenchModel, progress_bar, vocab_size
from folovllm.config import EMBEDDED_MODEL
from folovllm.core.step_record import StepRecord
from folovllm.engine.builder.components import Components, choose_components
from folovllm.engine.llm_engine import LLMEngine
from folovllm.tracing.records import PARTS
from folovllm.worker.kv_cache import KVCache
from folovllm.worker.model_runner import ModelRunner
from workshop.bench.decode import WARM_UP_STEPS, DecodingBatch
from workshop.bench.roofline import synchronize
from workshop.bench.rounds import take_turns
from workshop.bench.timer import by_round, counted

COLUMNS = [
    "batch", "steps", "schedule_ms", "prepare_ms", "update_ms", "outputs_ms", "other_ms", "host_ms", "forward_ms",
    "sampling_ms", "step_ms", "host_share",
]  # fmt: skip
PROMPT_TOKENS = 32


class Clocked:
    """A proxy of `target`: calls of it, and of its methods in `names`, pass through `timed`."""

    def __init__(self, target: Any, timed: Callable[..., Any], *names: str) -> None:
        self._target, self._timed, self._names = target, timed, names

    def __call__(self, *args: Any) -> Any:
        return self._timed(self._target, *args)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return partial(self._timed, found) if name in self._names else found


class StepClock:
    """Seconds of the current step by part. A listener of an LLMEngine that was made with its choose()."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def choose(self, *args: Any) -> Components:
        parts = choose_components(*args)
        return replace(parts, runner=partial(self._make_runner, parts.runner))

    def _make_runner(
        self, make: Callable[..., ModelRunner], model: Any, kv_cache: KVCache, sampling: Any, graphs: Any, **sizes: Any
    ) -> ModelRunner:
        forward = partial(self._timed, "forward", sizes["device"])
        if graphs is not None:
            graphs = Clocked(graphs, forward, "replay")  # which calls neither of the model's
        drawn = Clocked(sampling, partial(self._timed, "sampling", sizes["device"]), "draw")
        return make(Clocked(model, forward, "compute_logits"), kv_cache, drawn, graphs, **sizes)

    def _timed(self, part: str, device: torch.device, call: Callable[..., Any], *args: Any) -> Any:
        start = time.perf_counter()
        result = call(*args)
        synchronize(device)
        self.seconds[part] += time.perf_counter() - start
        return result

    def __call__(self, record: StepRecord) -> None:
        for part, (begin, end) in zip(PARTS, pairwise(record.times), strict=True):
            self.seconds[part] += end - begin

    def step(self, engine: LLMEngine) -> dict[str, float]:
        """One step of the engine: milliseconds by column."""
        self.seconds.clear()
        start = time.perf_counter()
        engine.step()
        whole, seconds = time.perf_counter() - start, self.seconds
        seconds["prepare"] = seconds["launch"] - seconds["forward"] - seconds["sampling"]
        parts = {name: seconds[name] for name in ("schedule", "prepare", "update")} | {"outputs": seconds["output"]}
        host = whole - seconds["forward"] - seconds["sampling"]
        parts |= {"other": host - sum(parts.values()), "host": host, "forward": seconds["forward"]}
        parts |= {"sampling": seconds["sampling"], "step": whole}
        return {f"{name}_ms": each * 1e3 for name, each in parts.items()} | {"host_share": host / whole}


def add_arguments(command: argparse.ArgumentParser) -> None:
    text = "Decode steps of a full batch: the host's work before and after the model, against the model's own."
    command.description = text
    add_batch_sizes(command, 1, 8, 64)
    add_number(command, "--steps", default=50, help="measured steps of a round")
    add_common(command)


def run(args: argparse.Namespace) -> Report:
    """Rounds of every batch size in turn; a round starts its sequences anew."""
    batch_sizes, steps, rounds = list(dict.fromkeys(args.batch_sizes)), args.steps, args.rounds
    most = max(batch_sizes)
    model = BenchModel("the embedded model", EMBEDDED_MODEL, "auto", getattr(args, "observers", ()))
    clock = StepClock()
    with progress_bar(1 + (rounds + 1) * len(batch_sizes)) as tick:
        tick("loading")
        # One prefill for all of a round's prompts; no more is reserved than a round needs.
        engine = make_engine(
            model, "auto", None, choose=clock.choose, skip_tokenizer_init=False, max_num_seqs=most,
            max_num_batched_tokens=max(2048, most * PROMPT_TOKENS),
            max_model_len=PROMPT_TOKENS + 1 + WARM_UP_STEPS + steps + 1,
        )  # fmt: skip
        engine.core.listen(clock)
        vocab = vocab_size(model)

        def play(batch: int, number: int) -> list[dict[str, float]]:
            sequences = DecodingBatch(engine, batch, PROMPT_TOKENS, vocab, args.seed)
            if engine.stats().running_seqs != batch:
                raise RuntimeError(f"{engine.stats().running_seqs} sequences run instead of {batch}")
            results = [clock.step(engine) for _ in range(steps if number else 1)]
            sequences.end()
            return results

        plays = [(f"batch {batch}", partial(play, batch)) for batch in batch_sizes]
        found = take_turns(plays, rounds, tick)
    lines = []
    for batch, of_rounds in zip(batch_sizes, found, strict=True):
        results = [result for results in of_rounds for result in results]
        facts: Row = {"batch": batch, "steps": len(results)}
        facts |= {name: statistics.median(result[name] for result in results) for name in results[0]}
        names = ("host_ms", "forward_ms", "sampling_ms", "step_ms")
        lines.append((facts, {name: by_round([result[name] / 1e3 for result in results], rounds) for name in names}))
    notes = [
        f"{medians(rounds * steps, 'decode step')}, {steps} in each of {counted(rounds, 'round')}, batch sizes in "
        f"turn, after {WARM_UP_STEPS} steps to warm up; each column's own median, so a row's parts add up only nearly.",
        f"The embedded model in {str(engine.dtype).removeprefix('torch.')}, text decoded, greedy, prompts of "
        f"{PROMPT_TOKENS} tokens. host: the step without forward and sampling.",
    ]
    return Report.of(args, "A decode step, taken apart", COLUMNS, lines, notes)
