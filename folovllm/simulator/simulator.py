"""Arrivals, a router and replicas, in the order in which things happen.

    next request   at t      t           each replica takes the steps that are over at t, one replica after the other:
    replica 0      ─┤step├┤step├┤st|ep├          between two arrivals, none knows of the others
    replica 1      ┤step├──┤ste|p├               the request is routed, by loads of that moment, and added
    replica 2      ────────────|                 one that was idle begins a step

So a request that comes during a step waits for the next one, as in an engine.

vLLM: none
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from folovllm.bench.metrics import RequestTimes
from folovllm.serving.routing import LeastLoaded, Router
from folovllm.simulator.cost_model import CostModel
from folovllm.simulator.load import Job
from folovllm.simulator.prompts import first_hashes
from folovllm.simulator.replica import Replica, Setup
from folovllm.utils.checks import check_int


class Simulator:
    """Args:
    router: chooses among `replicas`; it gets their names.

    Attributes:
        now: seconds to the last token so far.
    """

    def __init__(self, setup: Setup, cost: CostModel, *, replicas: int = 1, router: Router | None = None) -> None:
        check_int("replicas", replicas, 1)
        self.setup, self.router = setup, router or LeastLoaded()
        self.replicas = {f"replica-{number}": Replica(setup, cost) for number in range(replicas)}
        for name in self.replicas:
            self.router.add_replica(name)

    @property
    def now(self) -> float:
        return max(replica.now for replica in self.replicas.values())

    def run(self, jobs: Iterable[Job]) -> list[RequestTimes]:
        """To the last token of these jobs, which come in the order of their times. Returns the times of each, in
        simulated seconds."""
        times = []
        for number, job in enumerate(jobs):
            self._advance(job.time)
            times.append(self.replicas[self._choose(number, job)].add(number, job))
        self._advance(math.inf)
        return times

    def _advance(self, until: float) -> None:
        for replica in self.replicas.values():
            replica.advance(until)

    def _choose(self, number: int, job: Job) -> str:
        loads = {name: len(replica.live) for name, replica in self.replicas.items()}
        return self.router.choose(first_hashes(str(number), job, self.setup.block_size), loads)
