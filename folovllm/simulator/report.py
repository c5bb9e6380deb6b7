"""What `folovllm bench simulate` shows: a row for each combination of the settings that were given more than once.

vLLM: benchmarks/serve.py, benchmarks/sweep/
"""

from __future__ import annotations

import itertools
import time
from argparse import Namespace
from pathlib import Path

from folovllm.bench.arrivals import Arrivals
from folovllm.bench.metrics import load_row, parse_goals, percentiles_ms
from folovllm.bench.report import Line, Report, Row
from folovllm.bench.workload import progress_bar
from folovllm.config import SchedulerConfig
from folovllm.engine.builder.budgets import resolve_scheduler_config
from folovllm.serving.routing import ROUTERS
from folovllm.simulator.cost_model import Roofline
from folovllm.simulator.load import Job, Load
from folovllm.simulator.replica import Setup
from folovllm.simulator.simulator import Simulator
from folovllm.tracing.attach import Tracer, make_header
from folovllm.tracing.writer import TraceWriter
from folovllm.utils.checks import check_int

# What may be given more than once -> as a row's name has it.
SWEPT = {
    "request_rate": "requests/s",
    "max_num_batched_tokens": "budget",
    "block_size": "block size",
    "num_kv_blocks": "blocks",
    "policy": "policy",
    "router": "router",
}


def cases(args: Namespace) -> list[Namespace]:
    """`args` with each combination of the values given; None for a setting that is not given."""
    combinations = itertools.product(*(getattr(args, name) or [None] for name in SWEPT))
    return [Namespace(**{**vars(args), **dict(zip(SWEPT, values, strict=True))}) for values in combinations]


def setup_of(cost: Roofline, case: Namespace) -> Setup:
    """The simulated engine.

    Raises:
        ValueError: settings that contradict one another, or weights that do not fit.
    """
    check_int("block_size", case.block_size, 1)
    blocks = cost.num_blocks(case.block_size) if case.num_kv_blocks is None else case.num_kv_blocks
    check_int("num_kv_blocks", blocks, 1)
    config = SchedulerConfig(
        max_num_batched_tokens=case.max_num_batched_tokens,
        max_num_seqs=case.max_num_seqs,
        enable_chunked_prefill=not case.no_chunked_prefill,
        policy=case.policy,
    )
    longest = min(case.max_model_len or cost.shape.max_model_len, blocks * case.block_size)
    limits = resolve_scheduler_config(config, longest, cost.device.kind)
    return Setup(limits, blocks, case.block_size, not case.no_prefix_caching)


def jobs_of(load: Load, case: Namespace) -> list[Job]:
    arrivals = Arrivals(float("inf") if case.request_rate is None else case.request_rate, case.burstiness)
    return list(load.jobs(case.num_requests, arrivals, case.seed))


def run(cost: Roofline, load: Load, args: Namespace) -> Report:
    """`args`: as command.py has them. Raises ValueError: a wrong setting, or a trace of more than one simulation."""
    all_cases, goals = cases(args), parse_goals(args.goodput)
    if args.trace is not None and len(all_cases) > 1:
        raise ValueError(f"trace must be of one simulation, got {len(all_cases)}: give each setting once")
    setups = [setup_of(cost, case) for case in all_cases]  # what is wrong is refused before the first runs
    varied = [name for name in SWEPT if len({getattr(case, name) for case in all_cases}) > 1]
    rows, traced = list[Line](), list[Tracer]()
    with progress_bar(len(all_cases)) as tick:
        for case in all_cases:
            name = ", ".join(f"{SWEPT[name]} {_text(getattr(case, name))}" for name in varied) or "all"
            tick(name)
            row, traced = simulate(cost, jobs_of(load, case), case, goals)
            rows.append(({"setting": name, **row}, {}))
    columns = [column for column in rows[0][0] if any(row[column] is not None for row, _ in rows)]
    first, device = setups[0], cost.device
    several = f"{cost.devices} x " if cost.devices > 1 else ""
    notes = [
        "Simulated: the real scheduler and cache; the time of a step is the cost model's. faster: simulated seconds "
        "over those of the processor.",
        f"First setting: budget {first.config.max_num_batched_tokens}, at most {first.config.max_num_seqs} sequences, "
        f"{first.num_blocks:,} blocks of {first.block_size}, prefix caching "
        f"{'on' if first.enable_prefix_caching else 'off'}.",
        f"Step: {several}{device.name}, {device.bandwidth_share:.0%} of {device.bandwidth / 1e12:.3g} TB/s and "
        f"{device.flops_share:.0%} of {device.flops / 1e12:.4g} TFLOP/s, {device.step_overhead * 1e6:.0f} us a step, "
        f"{device.seq_overhead * 1e6:.1f} us a sequence.",
    ]
    if goals:
        wanted = ", ".join(f"{goal} within {limit:g} ms" for goal, limit in goals.items())
        notes.append(f"Goodput counts requests with {wanted}.")
    replicas = f"{args.replicas} replicas of " if args.replicas > 1 else ""
    title = f"{replicas}{cost.shape.name} on {several}{device.name}: {args.num_requests:,} requests, {load.describe()}"
    return Report.of(args, title, columns, rows, notes, traces=[tracer.writer for tracer in traced])


def simulate(cost: Roofline, jobs: list[Job], case: Namespace, goals: dict[str, float]) -> tuple[Row, list[Tracer]]:
    """One case's row, and what traced it, closed."""
    simulator = Simulator(setup_of(cost, case), cost, replicas=case.replicas, router=ROUTERS[case.router]())
    tracers = [] if case.trace is None else trace_replicas(simulator, case.trace, cost, case.dtype)
    began = time.process_time()
    times = simulator.run(jobs)
    cpu = max(time.process_time() - began, 1e-9)
    for tracer in tracers:
        tracer.close(simulator.now)
    seconds = max(simulator.now, 1e-12)
    row = load_row(times, seconds, goals)
    if any(job.priority for job in jobs):
        urgent = [each.ttft for job, each in zip(jobs, times, strict=True) if job.priority and each.problem is None]
        row |= percentiles_ms("urgent_ttft", urgent)
    return {**row, **counts(simulator), "cpu_s": cpu, "faster": seconds / cpu}, tracers


def counts(simulator: Simulator) -> Row:
    """What the scheduler and the cache did, over all replicas."""
    replicas = simulator.replicas.values()
    steps, managers = sum(replica.steps for replica in replicas), [replica.scheduler.kv for replica in replicas]
    return {
        "steps": steps,
        "running": sum(replica.rows for replica in replicas) / max(steps, 1),
        "hit_rate": sum(kv.num_hits for kv in managers) / max(sum(kv.num_queries for kv in managers), 1),
        "preempted": sum(replica.scheduler.preempter.num_recomputed for replica in replicas),
        "busy": sum(replica.busy for replica in replicas) / max(simulator.now, 1e-12) / len(replicas),
    }


def trace_replicas(simulator: Simulator, path: Path, cost: Roofline, dtype: str) -> list[Tracer]:
    """Trace each replica in a file: the first is `path`, the next end in -1, -2, … Simulated prompts have a length and
    no tokens, so there are no texts.

    Raises:
        ValueError: a path cannot be written.
    """
    tracers = []
    for number, replica in enumerate(simulator.replicas.values()):
        header = make_header(
            replica.scheduler,
            model=cost.shape.name,
            device=cost.device.name,
            dtype=dtype,
            preemption_mode=simulator.setup.config.preemption_mode,
            clock="simulated",
            texts=False,
        )
        writer = TraceWriter(path if number == 0 else path.with_stem(f"{path.stem}-{number}"))
        tracers.append(Tracer(writer, header, replica.scheduler))
        replica.listen(tracers[-1])
    return tracers


def _text(value: object) -> str:
    return "own" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
