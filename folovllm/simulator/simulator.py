"""Arrivals, a router and replicas, in the order in which things happen.

    heap   (time at which its step ends, replica)         next   the time at which the next request comes

    next comes first     route it, add it; a replica that was idle begins a step
    a step ends first    its tokens are there; requests that came meanwhile are added; the replica begins its next step

So a request that comes during a step waits for the next one, as in an engine.

vLLM: none
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from pathlib import Path

from folovllm.routing import LeastLoaded, Router
from folovllm.simulator.cost_model import CostModel
from folovllm.simulator.load import Job
from folovllm.simulator.meter import Meter
from folovllm.simulator.prompts import first_hashes
from folovllm.simulator.replica import Replica, Setup
from folovllm.tracing.attach import attach_scheduler, make_header
from folovllm.tracing.tracer import Tracer
from folovllm.tracing.wraps import Wraps
from folovllm.tracing.writer import TraceWriter


class Simulator:
    """Args:
    router: chooses among `replicas`; it gets their names.
    max_concurrency: so many requests at most are under way; the next waits outside, and its clock begins when it is
        sent (a closed loop).
    stretch: see Replica.
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
        stretch: bool = True,
    ) -> None:
        if replicas < 1:
            raise ValueError(f"replicas must be at least 1, got {replicas}")
        self.setup, self.meter, self.max_concurrency = setup, meter, max_concurrency
        self.router = router or LeastLoaded()
        self.replicas = {
            name: Replica(name, setup, cost, meter, stretch, self._on_finish)
            for name in (f"replica-{number}" for number in range(replicas))
        }
        for name, replica in self.replicas.items():
            self.router.add_replica(name)
            replica.watched = max_concurrency is not None
        self.sent: dict[str, int] = dict.fromkeys(self.replicas, 0)
        self.now = 0.0
        self._heap: list[tuple[float, str]] = []
        self._jobs: Iterator[Job] = iter(())
        self._next: Job | None = None
        self._number = self._in_flight = 0
        self._freed = 0.0  # when a place became free for a request that waited outside
        self._tell: Callable[[int], None] = lambda finished: None

    def run(self, jobs: Iterable[Job], tell: Callable[[int], None] | None = None) -> float:
        """To the last token. Returns the time of that, in simulated seconds. tell: called with the number of requests
        that have ended or were refused, each time that it changes."""
        self._jobs, self._tell = iter(jobs), tell or self._tell
        self._next = next(self._jobs, None)
        while True:
            due = self._due()
            if self._heap and self._heap[0][0] <= due:
                self.now, name = heappop(self._heap)
                self.replicas[name].end()
                for idle in dict.fromkeys([*self._take_arrivals(self.now), name]):
                    self._begin(idle)
            elif due < math.inf:
                self.now = due
                for idle in dict.fromkeys(self._take_arrivals(due)):
                    self._begin(idle)
            else:
                return max(replica.now for replica in self.replicas.values())

    def _due(self) -> float:
        """When the next request comes; infinity: none does, or it waits outside."""
        if self._next is None or (self.max_concurrency is not None and self._in_flight >= self.max_concurrency):
            return math.inf
        return max(self._next.time, self._freed)

    def _take_arrivals(self, now: float) -> list[str]:
        """Send what has come by now. Returns the replicas that have been idle."""
        idle = []
        while self._next is not None and (due := self._due()) <= now:
            job, request_id = self._next, self._number
            if len(self.replicas) == 1:
                (name,) = self.replicas
            else:
                loads = {name: replica.num_unfinished for name, replica in self.replicas.items()}
                name = self.router.choose(first_hashes(str(request_id), job, self.setup.block_size), loads)
            replica = self.replicas[name]
            was_idle = not replica.live
            if replica.add(request_id, job, due):
                self.sent[name] += 1
                self._in_flight += 1
                idle += [name] if was_idle else []
            else:
                self._tell(self.meter.finished + self.meter.refused)
            self._number += 1
            self._next = next(self._jobs, None)
        return idle

    def _begin(self, name: str) -> None:
        until = self._due()
        if self.max_concurrency is not None and self._heap:
            until = min(until, self._heap[0][0])  # there a request may end, and another come to this replica
        end = self.replicas[name].begin(until)
        if end is not None:
            heappush(self._heap, (end, name))

    def _on_finish(self, now: float) -> None:
        self._in_flight -= 1
        self._freed = max(self._freed, now)
        self._tell(self.meter.finished + self.meter.refused)


class Traces:
    """Traces of all replicas of a simulator, in a file each: the first is `path`, the next end in -1, -2, …

    Raises:
        ValueError: a path cannot be written.
    """

    def __init__(self, simulator: Simulator, path: Path, *, model: str, device: str, dtype: str) -> None:
        self._replicas = list(simulator.replicas.values())
        mode = simulator.setup.config.preemption_mode
        for number, replica in enumerate(self._replicas):
            file = path if number == 0 else path.with_stem(f"{path.stem}-{number}")
            header = make_header(  # without texts: a simulated prompt has a length and no tokens
                replica.scheduler,
                model=model,
                device=device,
                dtype=dtype,
                preemption_mode=mode,
                clock="simulated",
                texts=False,
            )
            replica.tracer = Tracer(TraceWriter(file), replica.scheduler, header, 0.0)
            replica.stretch = False
            attach_scheduler(replica.tracer, Wraps(), _clock_of(replica))

    def close(self) -> None:
        for replica in self._replicas:
            assert replica.tracer is not None
            replica.tracer.close(replica.now)


def _clock_of(replica: Replica) -> Callable[[], float]:
    return lambda: replica.now
