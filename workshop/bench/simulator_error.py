"""How far a simulation is from the engine: six loads, each played and simulated with the same arrivals.

    the load's engine      steps ──┐        ┌── steps ──┐        ┌── steps         its clock stops meanwhile
    another one like it            └ group ─┘           └ group ─┘                 groups of a calibration

A machine is faster in one second than in the next. So the steps whose costs are fitted are measured between those of
the load, and no step of the load itself is. The cost of a step is all that is measured; when which request is served is
left to the scheduler, in both.

vLLM: none
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from folovllm.bench.arrivals import Arrivals
from folovllm.bench.metrics import RequestTimes, percentile
from folovllm.bench.options import add_common, settle_threads
from folovllm.bench.report import Report, Row
from folovllm.bench.workload import BenchModel, progress_bar
from folovllm.engine.llm_engine import LLMEngine
from folovllm.simulator.command import model_here
from folovllm.simulator.cost_model import CostModel, Linear
from folovllm.simulator.load import Job, Load
from folovllm.simulator.meter import Meter
from folovllm.simulator.real import MeasuredStep, RealRun, calibrate, calibration, fit, make_engine
from folovllm.simulator.replica import Setup
from folovllm.simulator.simulator import Simulator

PERCENTS = (50, 95)
CALIBRATION_SIZES = (1, 4, 8, 16)
PIECE = 0.2
"""Seconds of a load between two groups of the calibration."""
LONGEST = 1024
ROOMY, TINY = 2000, 64
"""Blocks of 16 tokens: more than any load needs, and fewer than the one with preemption does."""


@dataclass(frozen=True)
class Case:
    """A load, and the engine that it is for."""

    load: Load
    count: int
    arrivals: Arrivals
    num_blocks: int = ROOMY


CASES = {
    "short": Case(Load((8, 64), (8, 32)), 120, Arrivals(8)),
    "long": Case(Load((300, 800), (16, 40)), 30, Arrivals(2)),
    "bursty": Case(Load((32, 160), (16, 40)), 72, Arrivals(5, burstiness=0.2)),
    "shared prefixes": Case(Load((16, 64), (16, 32), groups=2, prefix=400), 72, Arrivals(5)),
    "tiny cache": Case(Load((40, 120), (40, 100)), 48, Arrivals(8), TINY),
    "mixed": Case(Load((16, 600), (8, 48)), 42, Arrivals(3)),
}
COLUMNS = [
    "load", "requests", "preempted", "preempted_simulated", "step_off", "busy_off",
    "ttft_p50_ms", "ttft_p50_error", "ttft_p95_ms", "ttft_p95_error",
    "tpot_p50_ms", "tpot_p50_error", "tpot_p95_ms", "tpot_p95_error", "worst",
]  # fmt: skip
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
ERRORS = [name for name in COLUMNS if name.endswith("_error")]
"""Of what a user would notice. step_off and busy_off say how good the costs are, before any waiting multiplies it."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Six loads on the real engine, and simulated: how far the simulation is off."
    text = "a shape, or a folder with a model (default: qwen3-mini)"
    command.add_argument("--model", dest="shape_of", metavar="MODEL", help=text)
    command.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="float32")
    text = "cpu counts the CPU time of one thread, where others use the machine, too"
    command.add_argument("--clock", choices=list(CLOCKS), default="wall", help=text)
    add_common(command, rounds=1)


def run(args: argparse.Namespace) -> Report:
    """Errors are (simulated - real) / real, of each percentile; medians of the rounds, each with other jobs."""
    dtype, seed, rounds, clock = args.dtype, args.seed, args.rounds, args.clock
    if clock == "cpu" and args.threads is None:
        settle_threads(1, None)  # the CPU times of several would add up
    found: dict[str, list[Row]] = {name: [] for name in CASES}
    with model_here(args.shape_of) as model, progress_bar(1 + rounds * len(CASES)) as tick:
        tick("loading")
        runs = {blocks: RealRun(_engine(model, dtype, blocks), seed, CLOCKS[clock]) for blocks in (ROOMY, TINY)}
        probe = RealRun(_engine(model, dtype, ROOMY), seed, CLOCKS[clock])
        for one in (*runs.values(), probe):
            calibrate(one, seed, CALIBRATION_SIZES[:2])  # a warm-up
        groups = _groups(probe, seed)
        for number in range(rounds):
            shift = seed + 100 * number
            for place, (name, case) in enumerate(CASES.items()):
                tick(f"round {number + 1}/{rounds}: {name}")
                jobs = list(case.load.jobs(case.count, case.arrivals, shift + place))
                real = runs[case.num_blocks]
                preempter = real.engine.scheduler.preempter
                count = preempter.num_recomputed
                first, probed = len(real.steps), len(probe.steps)
                times = real.play(jobs, lambda: next(groups), PIECE)
                while not next(groups):  # to the end of a calibration, so that all kinds are there
                    pass
                costs = setup_of(real.engine), fit(probe.steps[probed:])
                row = _row(name, jobs, times, real.steps[first:], *costs)
                found[name].append(row | {"preempted": preempter.num_recomputed - count})
    rows = [_median(rows) for rows in found.values()]
    close = sum(abs(row[metric]) <= 0.15 for row in rows for metric in ERRORS)
    worst, metric, load = max((abs(row[metric]), metric, row["load"]) for row in rows for metric in ERRORS)
    single = max(abs(row[metric]) for rows in found.values() for row in rows for metric in ERRORS)
    engine = runs[ROOMY].engine
    notes = [
        f"Real: the engine, by the {clock} clock. Simulated: the same arrivals, the costs fitted to other steps, "
        "measured in between. error: simulated less real, over real.",
        "step_off: the median of what the costs are off for a single step of the real run. busy_off: the same of all "
        "its steps' sum, with its sign.",
        f"worst case: {metric.removesuffix('_error').replace('_', ' ')} of {load}, off by {worst:.0%}; "
        f"{close} of {len(rows) * len(ERRORS)} within 15%; in a single round off by {single:.0%} at most.",
        f"{rounds} round{'s' if rounds > 1 else ''}, medians; {model.label}, {dtype}, budget "
        f"{engine.scheduler.max_num_batched_tokens}, {ROOMY} blocks, {TINY} in the tiny cache.",
    ]
    details = {"rounds": found, "worst": {"load": load, "metric": metric, "error": worst}}
    lines = [(row, dict[str, list[float]]()) for row in rows]
    return Report.of(args, "The simulator against the engine", COLUMNS, lines, notes, details=details)


def _groups(probe: RealRun, seed: int) -> Iterator[bool]:
    """Plays one calibration after the other, a group at a time. Whether it was a calibration's last one."""
    for shift in itertools.count(seed):
        for _ in calibration(probe, shift, CALIBRATION_SIZES):
            yield False
        yield True


def _engine(model: BenchModel, dtype: str, num_blocks: int) -> LLMEngine:
    sizes = {"max_num_seqs": 16, "max_num_batched_tokens": 128, "num_kv_blocks": num_blocks}
    return make_engine(model, dtype, **sizes, max_model_len=min(LONGEST, num_blocks * 16))


def setup_of(engine: LLMEngine) -> Setup:
    """The simulated engine that is like this one."""
    kv, config = engine.scheduler.kv, engine.config
    cached = config.cache_config.enable_prefix_caching
    return Setup(config.scheduler_config, kv.num_blocks, kv.block_size, kv.num_swap_blocks, cached)


def _row(
    name: str, jobs: list[Job], times: list[RequestTimes], steps: list[MeasuredStep], setup: Setup, cost: Linear
) -> Row:
    meter = Meter()
    simulator = Simulator(setup, cost, meter)
    simulator.run(jobs)
    preempted = sum(r.scheduler.preempter.num_recomputed for r in simulator.replicas.values())
    row: Row = {"load": name, "requests": len(jobs), "preempted_simulated": preempted, **compare_steps(cost, steps)}
    measures: list[tuple[str, Sequence[float], Sequence[float]]] = [
        ("ttft", [one.ttft for one in times], meter.ttft),
        ("tpot", [one.tpot for one in times if one.num_tokens > 1], meter.tpot),
    ]
    for metric, real, made in measures:
        for percent in PERCENTS:
            truth = percentile(real, percent)
            row[f"{metric}_p{percent}_ms"] = truth * 1e3
            row[f"{metric}_p{percent}_error"] = percentile(made, percent) / truth - 1
    return row | {"worst": max(abs(row[error]) for error in ERRORS)}


def compare_steps(cost: CostModel, steps: Sequence[MeasuredStep]) -> Row:
    """Of the steps that the engine took, one by one: what the costs say of each, and how long it was.

    step_off: the median of |predicted / measured - 1|. busy_off: predicted less measured, over measured, of their sums.
    """
    predicted = [cost.seconds(*step.shape) for step in steps]
    offs = [abs(one / step.seconds - 1) for one, step in zip(predicted, steps, strict=True)]
    return {
        "step_off": percentile(offs, 50),
        "busy_off": sum(predicted) / sum(step.seconds for step in steps) - 1,
    }


def _median(rows: list[Row]) -> Row:
    middle: Callable[[str], float] = lambda column: percentile([row[column] for row in rows], 50)  # noqa: E731
    found = {column: rows[0][column] if column in ("load", "requests") else middle(column) for column in COLUMNS}
    return found | {"worst": max(abs(found[error]) for error in ERRORS)}
