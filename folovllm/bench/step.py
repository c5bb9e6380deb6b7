"""A decode step, taken apart: what the host does before and after the model, and what the model takes.

    schedule ─▶ prepare ─▶ forward ─▶ sampling ─▶ prepare (tokens into the batch) ─▶ update ─▶ outputs
    └──────host──────┘     └──── the model ────┘  └───────────────────host──────────────────────────┘

The clock is put around the very methods that the engine calls, with the model that ships here, all sequences decoding.
Whatever of a step is not the model's counts as the host's, also what lies between the methods ("other").

vLLM: none
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch

from folovllm.bench.options import add_output, add_rounds, add_seed, command_line
from folovllm.bench.report import Report, Row, by_round, counted, medians
from folovllm.bench.workload import BenchModel, progress_bar, random_prompts, require_at_least, vocab_size
from folovllm.config import EMBEDDED_MODEL
from folovllm.engine.defaults import config_for_llm
from folovllm.engine.llm_engine import LLMEngine
from folovllm.sampling_params import SamplingParams

COLUMNS = [
    "batch",
    "steps",
    "schedule_ms",
    "prepare_ms",
    "update_ms",
    "outputs_ms",
    "other_ms",
    "host_ms",
    "forward_ms",
    "sampling_ms",
    "step_ms",
    "host_share",
]
PROMPT_TOKENS = 32
WARM_UP_STEPS = 5
EMBEDDED = BenchModel("the embedded model", EMBEDDED_MODEL, "auto")

# A part of the step -> the methods that it is made of.
# All that this file knows of an engine's inside stands here.
METHODS: dict[str, Callable[[LLMEngine], list[tuple[Any, str]]]] = {
    "schedule": lambda engine: [(engine.scheduler, "schedule")],
    "prepare": lambda engine: [
        (engine.runner, "_update_batch"),
        (engine.runner.batch, "prepare"),
        (engine.runner.batch, "advance"),
    ],
    "forward": lambda engine: [
        (engine.runner.model, "forward"),
        (engine.runner.model, "compute_logits"),
        *([(engine.runner.graphs, "replay")] if engine.runner.graphs else []),  # which calls neither of them
    ],
    "sampling": lambda engine: [(engine.runner.sampling, "draw")],
    "update": lambda engine: [(engine.scheduler, "update_from_output")],
    "outputs": lambda engine: [(engine.output_processor, "process_outputs")],
}


class StepClock:
    """Seconds of the current step by part. Wraps the methods of one engine, which is its own from then on."""

    def __init__(self, engine: LLMEngine) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.device = engine.device
        for part, methods in METHODS.items():
            for owner, name in methods(engine):
                setattr(owner, name, self._timed(part, getattr(owner, name)))

    def _timed(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        waits = part in ("forward", "sampling") and self.device.type == "cuda"  # where a call only queues the work

        @wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = method(*args, **kwargs)
            if waits:
                torch.cuda.synchronize(self.device)
            self.seconds[part] += time.perf_counter() - start
            return result

        return timed

    def step(self, engine: LLMEngine) -> dict[str, float]:
        """One step of the engine: seconds by column."""
        self.seconds.clear()
        start = time.perf_counter()
        engine.step()
        whole = time.perf_counter() - start
        seconds = self.seconds
        parts = {name: seconds[name] for name in ("schedule", "prepare", "update", "outputs")}
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
    command.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 64], help="sequences")
    command.add_argument("--steps", type=int, metavar="N", default=50, help="measured steps of a round")
    add_rounds(command)
    add_seed(command)
    add_output(command)


def from_args(args: argparse.Namespace) -> Report:
    options = {name: getattr(args, name) for name in ("steps", "rounds", "seed")}
    return run(args.batch_sizes, command=command_line(args), **options)


def run(batch_sizes: Sequence[int], *, command: str, steps: int = 50, rounds: int = 3, seed: int = 0) -> Report:
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
        engine = LLMEngine(config)
        clock = StepClock(engine)
        for number in range(rounds):
            for batch, results in results_of.items():
                tick(f"round {number + 1}/{rounds}: batch {batch}")
                results += _measure(engine, clock, batch, steps, seed, name=f"round{number}-{batch}")
    rows = [_row(batch, results) for batch, results in results_of.items()]
    notes = [
        f"{medians(rounds * steps, 'decode step')}, {steps} in each of {counted(rounds, 'round')}, batch sizes in "
        f"turn, after {WARM_UP_STEPS} steps to warm up; each column's own median, so a row's parts add up only nearly.",
        f"The embedded model in {str(engine.dtype).removeprefix('torch.')}, text decoded, greedy, prompts of "
        f"{PROMPT_TOKENS} tokens. host: the step without forward and sampling.",
    ]
    samples = [_by_round(results, rounds) for results in results_of.values()]
    return Report("step", "A decode step, taken apart", command, COLUMNS, rows, notes, samples=samples)


def _measure(
    engine: LLMEngine, clock: StepClock, batch: int, steps: int, seed: int, name: str
) -> list[dict[str, float]]:
    params = SamplingParams(temperature=0, max_tokens=engine.max_model_len, ignore_eos=True)
    names = [f"{name}-{number}" for number in range(batch)]
    prompts = random_prompts(batch, PROMPT_TOKENS, vocab_size(EMBEDDED), seed=seed + batch)
    for request_id, prompt in zip(names, prompts, strict=True):
        engine.add_request(request_id, prompt, params)
    gc.collect()  # here, and not in the middle of a step
    for _ in range(1 + WARM_UP_STEPS):
        engine.step()
    if engine.stats().running_seqs != batch:
        raise RuntimeError(f"{engine.stats().running_seqs} sequences run instead of {batch}")
    results = [clock.step(engine) for _ in range(steps)]
    for request_id in names:
        engine.abort_request(request_id)
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
