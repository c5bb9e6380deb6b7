"""Arrivals, a router and replicas, in the order in which things happen.

    next request   at t      t           each replica takes the steps that are over at t, one replica after the other:
    replica 0      ─┤step├┤step├┤st|ep├          between two arrivals, none knows of the others
    replica 1      ┤step├──┤ste|p├               the request is routed, by loads of that moment, and added
    replica 2      ────────────|                 one that was idle begins a step

So a request that comes during a step waits for the next one, as in an engine. Where its place must become free first
(a closed loop), the replica goes on whose step ends first, until a request has ended.

vLLM: none
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from folovllm.serving.routing import LeastLoaded, Router
from folovllm.simulator.cost_model import CostModel
from folovllm.simulator.load import Job
from folovllm.simulator.meter import Meter
from folovllm.simulator.prompts import first_hashes
from folovllm.simulator.replica import Replica, Setup
from folovllm.tracing.attach import make_header
from folovllm.tracing.tracer import Tracer
from folovllm.tracing.writer import TraceWriter


class Simulator:
    """Args:
    router: chooses among `replicas`; it gets their names.
    max_concurrency: so many requests at most are under way; the next waits outside, and its clock begins when it is
        sent (a closed loop).
    """

    def __init__(
        self,
        setup: Setup,
        cost: CostModel,
        meter: Meter,
        *,
        replicas: int = 1,
        router: Router | None = None,
        max_concurrency: int | None = None,
    ) -> None:
        if replicas < 1:
            raise ValueError(f"replicas must be at least 1, got {replicas}")
        self.setup, self.meter, self.max_concurrency = setup, meter, max_concurrency
        self.router = router or LeastLoaded()
        self.replicas = {
            name: Replica(name, setup, cost, meter, self._on_finish)
            for name in (f"replica-{number}" for number in range(replicas))
        }
        for name in self.replicas:
            self.router.add_replica(name)
        self.sent: dict[str, int] = dict.fromkeys(self.replicas, 0)
        self._loads: dict[str, int] = dict.fromkeys(self.replicas, 0)  # unfinished requests
        self._in_flight = 0  # of all replicas
        self._freed = 0.0  # when a place became free for a request that waited outside
        self._on_progress: Callable[[int], None] = lambda finished: None

    def run(self, jobs: Iterable[Job], on_progress: Callable[[int], None] | None = None) -> float:
        """To the last token. Returns the time of that, in simulated seconds. on_progress: gets the number of requests
        that have ended or were refused, each time that it changes."""
        self._on_progress = on_progress or self._on_progress
        replicas = list(self.replicas.values())
        for number, job in enumerate(jobs):
            while self._in_flight == self.max_concurrency:
                self._advance_to_an_end(replicas)
            due = max(job.time, self._freed)
            for replica in replicas:
                replica.advance(due)
            self._send(number, job, due)
        for replica in replicas:
            replica.advance(math.inf)
        return max(replica.now for replica in replicas)

    def _advance_to_an_end(self, replicas: list[Replica]) -> None:
        """The replica whose step ends first goes on, to the end of a request or of another replica's step."""
        ends = [replica.next_end() for replica in replicas]
        first = min(range(len(ends)), key=ends.__getitem__)
        replicas[first].advance(min((*ends[:first], *ends[first + 1 :]), default=math.inf), watched=True)

    def _send(self, number: int, job: Job, due: float) -> None:
        if len(self.replicas) == 1:
            (name,) = self.replicas
        else:
            name = self.router.choose(first_hashes(str(number), job, self.setup.block_size), self._loads)
        if self.replicas[name].add(number, job, due):
            self.sent[name] += 1
            self._loads[name] += 1
            self._in_flight += 1
        else:
            self._on_progress(self.meter.finished + self.meter.refused)

    def _on_finish(self, name: str, now: float) -> None:
        self._loads[name] -= 1
        self._in_flight -= 1
        if self.max_concurrency is not None:
            self._freed = max(self._freed, now)
        self._on_progress(self.meter.finished + self.meter.refused)


def trace_replicas(simulator: Simulator, path: Path, **facts: str) -> list[Tracer]:
    """Trace each replica in one file: the first is `path`, the next end in -1, -2, … Simulated prompts have a
    length and no tokens, so there are no texts.

    Args:
        facts: model, device and dtype, as the header says them.

    Raises:
        ValueError: a path cannot be written.
    """
    tracers, mode = [], simulator.setup.config.preemption_mode
    for number, replica in enumerate(simulator.replicas.values()):
        scheduler = replica.scheduler
        writer = TraceWriter(path if number == 0 else path.with_stem(f"{path.stem}-{number}"))
        header = make_header(scheduler, preemption_mode=mode, clock="simulated", texts=False, **facts)
        tracers.append(Tracer(writer, scheduler, replica.observers, header, partial(getattr, replica, "now")))
    return tracers
