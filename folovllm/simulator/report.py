"""What `folovllm bench simulate` shows: a row for each combination of the settings that were given more than once.

vLLM: benchmarks/serve.py, benchmarks/sweep/
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from folovllm.bench.arrivals import Arrivals
from folovllm.bench.metrics import percentiles_ms
from folovllm.bench.report import Report, Row
from folovllm.bench.workload import progress_bar
from folovllm.config import SchedulerConfig
from folovllm.engine.limits import resolve_scheduler_config
from folovllm.routing import ROUTERS
from folovllm.simulator.cost_model import CostModel, Roofline
from folovllm.simulator.load import Job, Load, read_jobs
from folovllm.simulator.meter import Meter
from folovllm.simulator.replica import Setup
from folovllm.simulator.simulator import Simulator, Traces
from folovllm.tracing.writer import TraceWriter
from folovllm.utils.checks import check_int

SWEPT = ("request_rate", "max_num_batched_tokens", "block_size", "num_kv_blocks", "policy", "router")
"""What may be given more than once, as fields of Case."""
NAMES = {
    "request_rate": "requests/s",
    "max_num_batched_tokens": "budget",
    "block_size": "block size",
    "num_kv_blocks": "blocks",
    "policy": "policy",
    "router": "router",
}


@dataclass(frozen=True)
class Case:
    """One simulation, but for the device and the load's lengths. None: as the engine chooses by itself."""

    request_rate: float = float("inf")
    max_num_batched_tokens: int | None = None
    block_size: int = 16
    num_kv_blocks: int | None = None
    policy: Literal["fcfs", "priority"] = "fcfs"
    router: str = "round-robin"


@dataclass(frozen=True)
class Options:
    """What all cases have in common."""

    cost: CostModel
    model: str
    device: str
    kind: str
    dtype: str
    max_model_len: int
    load: Load
    requests: Path | None = None
    num_requests: int = 1000
    burstiness: float = 1.0
    max_concurrency: int | None = None
    replicas: int = 1
    max_num_seqs: int = 256
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    goals: dict[str, float] = field(default_factory=dict)
    seed: int = 0

    def setup(self, case: Case) -> Setup:
        """The engine of a case.

        Raises:
            ValueError: settings that contradict one another, or weights that do not fit.
        """
        check_int("block_size", case.block_size, 1)
        blocks = case.num_kv_blocks
        if blocks is None:
            assert isinstance(self.cost, Roofline)  # the command gives one where the device is measured
            blocks = self.cost.num_blocks(case.block_size)
        check_int("num_kv_blocks", blocks, 1)
        config = SchedulerConfig(
            max_num_batched_tokens=case.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            enable_chunked_prefill=self.enable_chunked_prefill,
            policy=case.policy,
        )
        longest = min(self.max_model_len, blocks * case.block_size)
        limits = resolve_scheduler_config(config, longest, self.kind)
        return Setup(limits, blocks, case.block_size, 0, self.enable_prefix_caching)

    def jobs(self, case: Case) -> Iterable[Job]:
        if self.requests is not None:
            return read_jobs(self.requests)
        return self.load.jobs(self.num_requests, self.arrivals(case), self.seed)

    def arrivals(self, case: Case) -> Arrivals:
        return Arrivals(case.request_rate, self.burstiness, self.max_concurrency)


def cases(**given: Sequence[Any]) -> list[Case]:
    """Each combination of the values given; a setting that is not given stays at its default."""
    used = {name: values for name, values in given.items() if values}
    return [Case(**dict(zip(used, values, strict=True))) for values in itertools.product(*used.values())]


@dataclass
class SimulationReport(Report):
    """And the traces that were written, one for each replica."""

    traces: Sequence[TraceWriter] = ()

    def check_files(self) -> None:
        for writer in self.traces:
            writer.check_whole()


def run(options: Options, cases: Sequence[Case], *, command: str, trace: Path | None = None) -> SimulationReport:
    """Raises ValueError: a wrong setting, or a trace of more than one simulation."""
    if trace is not None and len(cases) > 1:
        raise ValueError(f"trace must be of one simulation, got {len(cases)}: give each setting once")
    for case in cases:
        options.setup(case)  # refused before the first runs
    varied = [name for name in SWEPT if len({getattr(case, name) for case in cases}) > 1]
    rows, writers = [], list[TraceWriter]()
    with progress_bar(100 * len(cases)) as tick:
        for number, case in enumerate(cases):
            name = ", ".join(f"{NAMES[name]} {_text(getattr(case, name))}" for name in varied) or "all"
            row = simulate(options, case, _teller(tick, name, number, options), trace, writers)
            rows.append({"setting": name, **row})
    first = options.setup(cases[0])
    notes = [
        "Simulated: the real scheduler and cache; the time of a step is the cost model's. faster: simulated seconds "
        "over real ones; faster_cpu: over those of the processor, as on a machine where nothing else runs.",
        f"First setting: budget {first.config.max_num_batched_tokens}, at most {first.config.max_num_seqs} sequences, "
        f"{first.num_blocks:,} blocks of {first.block_size}, prefix caching "
        f"{'on' if first.enable_prefix_caching else 'off'}.",
        _describe_cost(options.cost),
    ]
    if options.goals:
        wanted = ", ".join(f"{goal} within {limit:g} ms" for goal, limit in options.goals.items())
        notes.append(f"Goodput counts requests with {wanted}.")
    load = str(options.requests) if options.requests else options.load.describe()
    count = "" if options.requests else f"{options.num_requests:,} requests, "
    when = (
        "" if options.requests else f", {options.arrivals(cases[0]).describe()}" if "request_rate" not in varied else ""
    )
    replicas = f"{options.replicas} replicas of " if options.replicas > 1 else ""
    title = f"{replicas}{options.model} on {options.device}: {count}{load}{when}"
    columns = list(rows[0])
    return SimulationReport("simulate", title, command, columns, rows, notes, seed=options.seed, traces=writers)


def simulate(
    options: Options, case: Case, tell: Callable[[int], None], trace: Path | None, writers: list[TraceWriter]
) -> Row:
    """One case's row; the writers of its traces, closed, are added to `writers`."""
    meter = Meter(options.goals)
    simulator = Simulator(
        options.setup(case),
        options.cost,
        meter,
        replicas=options.replicas,
        router=ROUTERS[case.router](),
        max_concurrency=options.max_concurrency,
    )
    traces = None
    if trace is not None:
        traces = Traces(simulator, trace, model=options.model, device=options.device, dtype=options.dtype)
    began, cpu = time.perf_counter(), time.process_time()
    with _no_collector():
        seconds = simulator.run(options.jobs(case), tell)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    if traces is not None:
        writers += traces.close()
    row = meter.row(seconds) | percentiles_ms("urgent_ttft", meter.urgent_ttft)
    if not meter.urgent_ttft:
        row = {name: value for name, value in row.items() if not name.startswith("urgent")}
    if not options.goals:
        del row["goodput_per_s"]
    replicas = simulator.replicas.values()
    steps = sum(replica.counts.steps for replica in replicas)
    hits = sum(getattr(replica.scheduler.kv, "num_hits", 0) for replica in replicas)
    queries = sum(getattr(replica.scheduler.kv, "num_queries", 0) for replica in replicas)
    return row | {
        "steps": steps,
        "running": sum(replica.counts.rows for replica in replicas) / max(steps, 1),
        "hit_rate": hits / queries if queries else 0.0,
        "preempted": sum(replica.scheduler.preempter.num_recomputed for replica in replicas),
        "busy": sum(replica.counts.busy for replica in replicas) / max(seconds, 1e-12) / options.replicas,
        "real_s": took,
        "cpu_s": cpu,
        "faster": seconds / took,
        "faster_cpu": seconds / max(cpu, 1e-9),
    }


@contextmanager
def _no_collector() -> Iterator[None]:
    """Nothing here is in a cycle, and a pass over all that lives takes longer the more of it there is."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _teller(tick: Callable[[str], None], name: str, number: int, options: Options) -> Callable[[int], None]:
    """Moves the bar at each hundredth of the requests; of a file nobody knows how many there are."""
    every = max(options.num_requests // 100, 1)
    tick(name)

    def tell(finished: int) -> None:
        if finished % every == 0 and 0 < finished < 100 * every:
            tick(f"{name}: {finished:,} requests")

    return tell


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
