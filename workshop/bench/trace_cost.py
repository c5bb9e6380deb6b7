"""What tracing costs: the same decode steps with a tracer and without, in turn.

    engine A   step        step        step          round 1: A is traced
    engine B        step        step        step     round 2: B is traced, and so on

Two equal engines take turns step by step, so that a slow moment of the machine slows both; which of them is traced
changes from round to round, so that no engine's luck counts for one side.

The difference of two steps is a small one of two large numbers, and drowns where a machine is busy. So the time that
passes inside the tracer is taken as well, by the clock: `tracer_us`, and `share` of a step without it. It lacks what
the tracer pushes out of the processor's caches, which `cost` has.

vLLM: none
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from folovllm.bench.options import add_output, add_rounds, command_line
from folovllm.bench.report import Report, Row, counted, medians
from folovllm.bench.shapes import SHAPES
from folovllm.bench.step import EMBEDDED, PROMPT_TOKENS, WARM_UP_STEPS
from folovllm.bench.workload import BenchModel, bench_model, progress_bar, random_prompts, require_at_least, vocab_size
from folovllm.core.observer import EngineObserver
from folovllm.engine.defaults import config_for_llm
from folovllm.engine.llm_engine import LLMEngine
from folovllm.sampling_params import SamplingParams
from folovllm.tracing.attach import attach
from folovllm.tracing.writer import TraceWriter

COLUMNS = ["batch", "steps", "off_ms", "on_ms", "cost", "cost_low", "cost_high", "tracer_us", "share", "bytes_per_step"]


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Decode steps with a tracer and without, in turn: what --trace costs."
    command.add_argument("--model", metavar="MODEL", help="a folder or a hub id (default: the model that ships here)")
    command.add_argument("--shape", choices=list(SHAPES), help="random weights in this shape instead, no download")
    command.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 64], help="sequences")
    command.add_argument("--steps", type=int, metavar="N", default=100, help="measured steps of a round, of each kind")
    add_rounds(command, default=6)
    add_output(command)


def from_args(args: argparse.Namespace) -> Report:
    options: dict[str, Any] = {"command": command_line(args), "steps": args.steps, "rounds": args.rounds}
    if args.model is None and args.shape is None:
        return run(args.batch_sizes, **options)
    if args.model is not None and args.shape is not None:
        raise ValueError("--model and --shape must not be given together: a shape has random weights")
    with bench_model(args.model, args.shape or "") as model:
        return run(args.batch_sizes, model=model, **options)


def run(
    batch_sizes: Sequence[int], *, command: str, model: BenchModel = EMBEDDED, steps: int = 100, rounds: int = 6
) -> Report:
    """`cost`: how much longer the median step takes with a tracer, of all rounds; `low` and `high`: of single ones."""
    for batch in batch_sizes:
        require_at_least(1, batch_sizes=batch)
    require_at_least(1, steps=steps)
    require_at_least(2, rounds=rounds)
    rows: list[Row] = []
    with progress_bar(1 + rounds * len(batch_sizes)) as tick, tempfile.TemporaryDirectory() as folder:
        tick("loading")
        engines = [_engine(model, max(batch_sizes), steps) for _ in range(2)]
        for batch in batch_sizes:
            off: list[list[float]] = []
            on: list[list[float]] = []
            inside: list[float] = []
            num_bytes = 0
            for number in range(rounds):
                tick(f"batch {batch}, round {number + 1}/{rounds}")
                plain, traced = engines if number % 2 else reversed(engines)
                writer = TraceWriter(Path(folder) / "run.jsonl")
                name, vocabulary = f"{batch}-{number}", vocab_size(model)
                without, with_tracer, within, num_bytes = _measure(
                    plain, traced, writer, batch, steps, name, vocabulary
                )
                off.append(without)
                on.append(with_tracer)
                inside += within
            rows.append(_row(batch, off, on, inside, num_bytes / steps))
    notes = [
        f"{medians(rounds * steps, 'decode step')} of each kind, {steps} in each of {counted(rounds, 'round')}, with "
        "and without in turn, step by step.",
        "cost: the median step with a tracer over that without, less 1; low and high: of single rounds.",
        "tracer us: the median time inside the tracer, of a step; share: of the step without it.",
        f"{model.label} in {str(engines[0].dtype).removeprefix('torch.')}, greedy, prompts of {PROMPT_TOKENS} tokens.",
    ]
    return Report("trace", "What a trace costs", command, COLUMNS, rows, notes)


def _engine(model: BenchModel, batch: int, steps: int) -> LLMEngine:
    config = config_for_llm(
        model.path,
        load_format=model.load_format,
        skip_tokenizer_init=True,
        max_num_seqs=batch,
        max_num_batched_tokens=max(2048, batch * PROMPT_TOKENS),
        max_model_len=PROMPT_TOKENS + 1 + WARM_UP_STEPS + steps + 1,
    )
    return LLMEngine(config)


def _measure(
    plain: LLMEngine, traced: LLMEngine, writer: TraceWriter, batch: int, steps: int, name: str, vocabulary: int
) -> tuple[list[float], list[float], list[float], int]:
    """Seconds of each step without and with a tracer, those inside the tracer, and the bytes that these steps wrote."""
    tracer = attach(traced, writer)
    spent: list[float] = []  # by each event that the tracer was told of, in seconds
    untimed = list(traced.observers)
    traced.observers[:] = [cast(EngineObserver, Timed(observer, spent)) for observer in untimed]
    prompts = random_prompts(batch, PROMPT_TOKENS, vocabulary, seed=batch)
    params = SamplingParams(temperature=0, max_tokens=plain.max_model_len, ignore_eos=True)
    names = [f"{name}-{number}" for number in range(batch)]
    for engine in (plain, traced):
        for request_id, prompt in zip(names, prompts, strict=True):
            engine.add_request(request_id, prompt, params)
    gc.collect()  # here, and not in the middle of a step
    for _ in range(1 + WARM_UP_STEPS):
        _seconds(plain)
        _seconds(traced)
    before = writer.num_bytes
    spent.clear()
    pairs, inside = [], []
    for number in range(steps):  # which is first changes as well
        if number % 2:
            on, off = _seconds(traced), _seconds(plain)
        else:
            off, on = _seconds(plain), _seconds(traced)
        pairs.append((off, on))
        inside.append(sum(spent))
        spent.clear()
    num_bytes = writer.num_bytes - before
    for engine in (plain, traced):
        for request_id in names:
            engine.abort_request(request_id)
    traced.observers[:] = untimed
    tracer.close()
    return [off for off, _ in pairs], [on for _, on in pairs], inside, num_bytes


class Timed:
    """Stands for an observer, and adds to `spent` the seconds of each event that it is told of."""

    def __init__(self, observer: EngineObserver, spent: list[float]) -> None:
        self._observer, self._spent = observer, spent

    def __getattr__(self, event: str) -> Callable[..., None]:
        tell = getattr(self._observer, event)

        def timed(*args: Any) -> None:
            start = time.perf_counter()
            tell(*args)
            self._spent.append(time.perf_counter() - start)

        return timed


def _seconds(engine: LLMEngine) -> float:
    start = time.perf_counter()
    engine.step()
    return time.perf_counter() - start


def _row(batch: int, off: list[list[float]], on: list[list[float]], inside: list[float], bytes_per_step: float) -> Row:
    costs = [statistics.median(b) / statistics.median(a) - 1 for a, b in zip(off, on, strict=True)]
    all_off = statistics.median(seconds for samples in off for seconds in samples)
    all_on = statistics.median(seconds for samples in on for seconds in samples)
    return {
        "batch": batch,
        "steps": sum(map(len, on)),
        "off_ms": all_off * 1e3,
        "on_ms": all_on * 1e3,
        "cost": all_on / all_off - 1,
        "cost_low": min(costs),
        "cost_high": max(costs),
        "tracer_us": statistics.median(inside) * 1e6,
        "share": statistics.median(inside) / all_off,
        "bytes_per_step": round(bytes_per_step),
    }
