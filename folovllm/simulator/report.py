"""What `folovllm bench simulate` shows: a row for each combination of the settings that were given more than once.

vLLM: benchmarks/serve.py, benchmarks/sweep/
"""

from __future__ import annotations

import gc
import itertools
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from folovllm.bench.arrivals import Arrivals
from folovllm.bench.metrics import parse_goals, percentiles_ms
from folovllm.bench.report import Report, Row
from folovllm.bench.workload import progress_bar
from folovllm.config import SchedulerConfig
from folovllm.engine.budgets import resolve_scheduler_config
from folovllm.serving.routing import ROUTERS
from folovllm.simulator.cost_model import CostModel, Roofline
from folovllm.simulator.load import Load, read_jobs
from folovllm.simulator.meter import Meter
from folovllm.simulator.replica import Setup
from folovllm.simulator.simulator import Simulator, trace_replicas
from folovllm.tracing.writer import TraceWriter
from folovllm.utils.checks import check_int

# What may be given more than once, as fields of Case -> as a row's name has it.
SWEPT = {
    "request_rate": "requests/s",
    "max_num_batched_tokens": "budget",
    "block_size": "block size",
    "num_kv_blocks": "blocks",
    "policy": "policy",
    "router": "router",
}


@dataclass(frozen=True)
class Machine:
    """What is simulated: `max_model_len` is its model's, `kind` what a default may depend on, cpu or cuda."""

    cost: CostModel
    model: str
    device: str
    kind: str
    dtype: str
    max_model_len: int


@dataclass(frozen=True)
class Case:
    """One simulation, but for the device and the load's lengths. None: as the engine chooses by itself."""

    request_rate: float = float("inf")
    max_num_batched_tokens: int | None = None
    block_size: int = 16
    num_kv_blocks: int | None = None
    policy: Literal["fcfs", "priority"] = "fcfs"
    router: str = "round-robin"

    def setup(self, machine: Machine, args: Namespace) -> Setup:
        """Its engine.

        Raises:
            ValueError: settings that contradict one another, or weights that do not fit.
        """
        check_int("block_size", self.block_size, 1)
        blocks = self.num_kv_blocks
        if blocks is None:
            assert isinstance(machine.cost, Roofline)  # the command gives one where the device is measured
            blocks = machine.cost.num_blocks(self.block_size)
        check_int("num_kv_blocks", blocks, 1)
        config = SchedulerConfig(
            max_num_batched_tokens=self.max_num_batched_tokens,  # type: ignore[arg-type]  # None: the default
            max_num_seqs=args.max_num_seqs,
            enable_chunked_prefill=not args.no_chunked_prefill,
            policy=self.policy,
        )
        longest = min(args.max_model_len or machine.max_model_len, blocks * self.block_size)
        limits = resolve_scheduler_config(config, longest, machine.kind)
        return Setup(limits, blocks, self.block_size, 0, not args.no_prefix_caching)

    def arrivals(self, args: Namespace) -> Arrivals:
        return Arrivals(self.request_rate, args.burstiness, args.max_concurrency)


def cases(args: Namespace) -> list[Case]:
    """Each combination of the values given; a setting that is not given stays at its default."""
    used = {name: values for name in SWEPT if (values := getattr(args, name))}
    return [Case(**dict(zip(used, values, strict=True))) for values in itertools.product(*used.values())]


def run(machine: Machine, load: Load, args: Namespace, *, command: str) -> Report:
    """`args`: as command.py has them. Raises ValueError: a wrong setting, or a trace of more than one simulation."""
    all_cases, goals = cases(args), parse_goals(args.goodput)
    if args.trace is not None and len(all_cases) > 1:
        raise ValueError(f"trace must be of one simulation, got {len(all_cases)}: give each setting once")
    setups = [case.setup(machine, args) for case in all_cases]  # what is wrong is refused before the first runs
    varied = [name for name in SWEPT if len({getattr(case, name) for case in all_cases}) > 1]
    rows, writers = [], list[TraceWriter]()
    with progress_bar(100 * len(all_cases)) as tick:
        for case in all_cases:
            name = ", ".join(f"{SWEPT[name]} {_text(getattr(case, name))}" for name in varied) or "all"
            on_progress = _progress(tick, name, args.num_requests)
            rows.append({"setting": name, **simulate(machine, load, case, args, goals, on_progress, writers)})
    first = setups[0]
    notes = [
        "Simulated: the real scheduler and cache; the time of a step is the cost model's. faster: simulated seconds "
        "over real ones; faster_cpu: over those of the processor, as on a machine where nothing else runs.",
        f"First setting: budget {first.config.max_num_batched_tokens}, at most {first.config.max_num_seqs} sequences, "
        f"{first.num_blocks:,} blocks of {first.block_size}, prefix caching "
        f"{'on' if first.enable_prefix_caching else 'off'}.",
        _describe_cost(machine.cost),
    ]
    if goals:
        wanted = ", ".join(f"{goal} within {limit:g} ms" for goal, limit in goals.items())
        notes.append(f"Goodput counts requests with {wanted}.")
    asked = str(args.requests) if args.requests else f"{args.num_requests:,} requests, {load.describe()}"
    if not args.requests and "request_rate" not in varied:
        asked += f", {all_cases[0].arrivals(args).describe()}"
    replicas = f"{args.replicas} replicas of " if args.replicas > 1 else ""
    title = f"{replicas}{machine.model} on {machine.device}: {asked}"
    columns = list(rows[0])
    return Report("simulate", title, command, columns, rows, notes, seed=args.seed, traces=writers)


def simulate(
    machine: Machine,
    load: Load,
    case: Case,
    args: Namespace,
    goals: dict[str, float],
    on_progress: Callable[[int], None],
    writers: list[TraceWriter],
) -> Row:
    """One case's row; the writers of its traces, closed, are added to `writers`."""
    meter = Meter(goals)
    simulator = Simulator(
        case.setup(machine, args),
        machine.cost,
        meter,
        replicas=args.replicas,
        router=ROUTERS[case.router](),
        max_concurrency=args.max_concurrency,
    )
    tracers = []
    if args.trace is not None:
        facts = {"model": machine.model, "device": machine.device, "dtype": machine.dtype}
        tracers = trace_replicas(simulator, args.trace, **facts)
    jobs = read_jobs(args.requests) if args.requests else load.jobs(args.num_requests, case.arrivals(args), args.seed)
    began, cpu = time.perf_counter(), time.process_time()
    gc.disable()  # nothing here is in a cycle, and a pass over all that lives takes longer the more of it there is
    try:
        seconds = simulator.run(jobs, on_progress)
    finally:
        gc.enable()
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    for tracer in tracers:
        tracer.close()
        writers.append(tracer.writer)
    row = meter.row(seconds)
    if meter.urgent_ttft:
        row |= percentiles_ms("urgent_ttft", meter.urgent_ttft)
    replicas = simulator.replicas.values()
    steps = sum(replica.counts.steps for replica in replicas)
    managers = [replica.scheduler.kv for replica in replicas]
    return row | {
        "steps": steps,
        "running": sum(replica.counts.rows for replica in replicas) / max(steps, 1),
        "hit_rate": sum(kv.num_hits for kv in managers) / max(sum(kv.num_queries for kv in managers), 1),
        "preempted": sum(replica.scheduler.preempter.num_recomputed for replica in replicas),
        "busy": sum(replica.counts.busy for replica in replicas) / max(seconds, 1e-12) / args.replicas,
        "real_s": took,
        "cpu_s": cpu,
        "faster": seconds / took,
        "faster_cpu": seconds / max(cpu, 1e-9),
    }


def _progress(tick: Callable[[str], None], name: str, num_requests: int) -> Callable[[int], None]:
    """Moves the bar at each hundredth of the requests; how many a file has is not known."""
    every = max(num_requests // 100, 1)
    tick(name)

    def on_progress(finished: int) -> None:
        if finished % every == 0 and 0 < finished < 100 * every:
            tick(f"{name}: {finished:,} requests")

    return on_progress


def _describe_cost(cost: CostModel) -> str:
    if isinstance(cost, Roofline):
        device = cost.device
        several = f"{cost.devices} x " if cost.devices > 1 else ""
        return (
            f"Step: {several}{device.name}, {device.bandwidth_share:.0%} of {device.bandwidth / 1e12:.3g} TB/s and "
            f"{device.flops_share:.0%} of {device.flops / 1e12:.4g} TFLOP/s, "
            f"{device.step_overhead * 1e6:.0f} us a step, {device.seq_overhead * 1e6:.1f} us a sequence."
        )
    return f"Step: {cost}"


def _text(value: object) -> str:
    return "own" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
