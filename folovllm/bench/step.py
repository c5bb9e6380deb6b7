"""A decode step, taken apart: what the host does before and after the model, and what the model takes.

    schedule ─▶ prepare ─▶ forward ─▶ sampling ─▶ prepare (tokens into the batch) ─▶ update ─▶ outputs
    └──────host──────┘     └──── the model ────┘  └───────────────────host──────────────────────────┘

The model is the one that ships here, and all sequences decode. The engine tells when it comes to the next part; what
computes the model and draws is given to it with a clock. What else it does to launch a step is "prepare". Whatever of a
step is not the model's counts as the host's, also waiting for its tokens ("other").

vLLM: none
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from folovllm.bench.decoding import WARM_UP_STEPS, DecodingBatch
from folovllm.bench.options import add_output, add_rounds, add_seed
from folovllm.bench.report import Report, Row, by_round, counted, medians
from folovllm.bench.workload import BenchModel, progress_bar, require_at_least, vocab_size
from folovllm.config import EMBEDDED_MODEL
from folovllm.engine.defaults import config_for_llm
from folovllm.engine.llm_engine import LLMEngine
from folovllm.engine.parts import Parts, choose_parts
from folovllm.tracing.observer import PartObserver
from folovllm.worker.kv_cache import KVCache
from folovllm.worker.model_runner import ModelRunner

COLUMNS = [
    "batch", "steps", "schedule_ms", "prepare_ms", "update_ms", "outputs_ms", "other_ms", "host_ms", "forward_ms",
    "sampling_ms", "step_ms", "host_share",
]  # fmt: skip
PROMPT_TOKENS = 32
EMBEDDED = BenchModel("the embedded model", EMBEDDED_MODEL, "auto")


class Clocked:
    """Stands for `target`: calls of it, and of its methods in `names`, pass through `timed`."""

    def __init__(self, target: Any, timed: Callable[..., Any], *names: str) -> None:
        self._target, self._timed, self._names = target, timed, names

    def __call__(self, *args: Any) -> Any:
        return self._timed(self._target, *args)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return partial(self._timed, found) if name in self._names else found


class StepClock(PartObserver):
    """Seconds of the current step by part. An observer of an LLMEngine that was made with its choose()."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._part, self._at = "", 0.0

    def choose(self, *args: Any) -> Parts:
        parts = choose_parts(*args)
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
        if device.type == "cuda":  # where a call only queues the work
            torch.cuda.synchronize(device)
        self.seconds[part] += time.perf_counter() - start
        return result

    def part_began(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[self._part] += now - self._at
        self._part, self._at = part, now

    def step(self, engine: LLMEngine) -> dict[str, float]:
        """One step of the engine: seconds by column."""
        self.seconds.clear()
        start = time.perf_counter()
        engine.step()
        whole = time.perf_counter() - start
        seconds = self.seconds
        seconds["prepare"] = seconds["launch"] - seconds["forward"] - seconds["sampling"]
        parts = {name: seconds[name] for name in ("schedule", "prepare", "update")} | {"outputs": seconds["output"]}
        host = whole - seconds["forward"] - seconds["sampling"]
        return parts | {
            "other": host - sum(parts.values()),
            "host": host,
            "forward": seconds["forward"],
            "sampling": seconds["sampling"],
            "step": whole,
        }


def add_arguments(command: argparse.ArgumentParser) -> None:
    text = "Decode steps of a full batch: the host's work before and after the model, against the model's own."
    command.description = text
    command.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 64], metavar="N", help="in a step")
    command.add_argument("--steps", type=int, metavar="N", default=50, help="measured steps of a round")
    add_rounds(command)
    add_seed(command)
    add_output(command)


def run(
    batch_sizes: Sequence[int],
    *,
    command: str,
    steps: int = 50,
    rounds: int = 3,
    seed: int = 0,
    observers: Sequence[Callable[[LLMEngine], object]] = (),
) -> Report:
    """Rounds of every batch size in turn; a round starts its sequences anew."""
    for batch in batch_sizes:
        require_at_least(1, batch_sizes=batch)
    require_at_least(1, steps=steps, rounds=rounds)
    results_of: dict[int, list[dict[str, float]]] = {batch: [] for batch in batch_sizes}
    with progress_bar(1 + rounds * len(results_of)) as tick:
        tick("loading")
        config = config_for_llm(
            None,
            max_num_seqs=max(batch_sizes),
            # One prefill for all of a round's prompts; no more is reserved than a round needs.
            max_num_batched_tokens=max(2048, max(batch_sizes) * PROMPT_TOKENS),
            max_model_len=PROMPT_TOKENS + 1 + WARM_UP_STEPS + steps + 1,
        )
        clock = StepClock()
        engine = LLMEngine(config, choose=clock.choose)
        engine.observers.append(clock)
        for observe in observers:
            observe(engine)
        for number in range(rounds):
            for batch, results in results_of.items():
                tick(f"round {number + 1}/{rounds}: batch {batch}")
                results += _measure(engine, clock, batch, steps, seed)
    rows = [_row(batch, results) for batch, results in results_of.items()]
    notes = [
        f"{medians(rounds * steps, 'decode step')}, {steps} in each of {counted(rounds, 'round')}, batch sizes in "
        f"turn, after {WARM_UP_STEPS} steps to warm up; each column's own median, so a row's parts add up only nearly.",
        f"The embedded model in {str(engine.dtype).removeprefix('torch.')}, text decoded, greedy, prompts of "
        f"{PROMPT_TOKENS} tokens. host: the step without forward and sampling.",
    ]
    samples = [_by_round(results, rounds) for results in results_of.values()]
    return Report("step", "A decode step, taken apart", command, COLUMNS, rows, notes, samples=samples)


def _measure(engine: LLMEngine, clock: StepClock, batch: int, steps: int, seed: int) -> list[dict[str, float]]:
    sequences = DecodingBatch(engine, batch, PROMPT_TOKENS, vocab_size(EMBEDDED), seed)
    if engine.stats().running_seqs != batch:
        raise RuntimeError(f"{engine.stats().running_seqs} sequences run instead of {batch}")
    results = [clock.step(engine) for _ in range(steps)]
    sequences.end()
    return results


def _by_round(results: list[dict[str, float]], rounds: int) -> dict[str, list[float]]:
    names = ("host", "forward", "sampling", "step")
    return {f"{name}_ms": by_round([result[name] for result in results], rounds) for name in names}


def _row(batch: int, results: list[dict[str, float]]) -> Row:
    medians = {name: statistics.median(result[name] for result in results) for name in results[0]}
    row: Row = {"batch": batch, "steps": len(results)}
    row |= {f"{name}_ms": seconds * 1e3 for name, seconds in medians.items()}
    row["host_share"] = statistics.median(result["host"] / result["step"] for result in results)
    return {column: row[column] for column in COLUMNS}
