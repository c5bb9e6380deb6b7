"""Our engine and its peers in a race, and the machine measured between their runs. vLLM: none"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from folovllm.bench.contestant import Contestant, FoloVLLM, Run, Work, in_rounds
from folovllm.bench.peers.apart import PeerSetup
from folovllm.bench.peers.registry import make_peers
from folovllm.bench.roofline import ModelCost, Probe, exceeds_caches
from folovllm.bench.workload import progress_bar


@dataclass(frozen=True)
class Race:
    """Contestants, ours the first, and each one's run of each round."""

    contestants: list[Contestant]
    runs: list[list[Run]]
    missing: list[str]
    """A line for each peer that is not here."""
    probe: Probe
    cost: ModelCost

    @property
    def from_memory(self) -> bool:
        """Whether a step reads more than caches hold, so that a share of the bandwidth says something."""
        return exceeds_caches(self.cost.weight_bytes, self.probe.device)

    def roofline(self, run: Run) -> float | None:
        """Of the steps that only decode: the time to read the weights, over what they took."""
        steps = sum(not step.prefill for step in run)
        floor = steps * self.cost.weight_bytes / self.probe.bandwidth
        return floor / run.decode_seconds if self.from_memory else None


def race(
    setup: PeerSetup,
    peers: Sequence[str],
    rounds: int,
    work: Callable[[int], Work],
    *,
    prepare: Callable[[FoloVLLM], object] = lambda ours: None,
    **options: Any,
) -> Race:
    """`options`: of our engine, by their names; `prepare` gets it before it runs. Round 0 warms up."""
    with setup.cleanup, progress_bar(1 + len(peers) + (rounds + 1) * (1 + len(peers))) as tick:
        tick("loading folovllm")
        ours = FoloVLLM(setup.model, setup.dtype, setup.device, **{"max_model_len": setup.max_model_len, **options})
        prepare(ours)
        others, missing = make_peers(peers, setup, tick)
        contestants: list[Contestant] = [ours, *others]
        probe = Probe(ours.engine.device, ours.engine.dtype)
        measure = lambda warm_up: probe.measure(warm_up=warm_up)  # noqa: E731
        runs = in_rounds(contestants, rounds, work, tick, before_each=measure)
    return Race(contestants, runs, missing, probe, ModelCost.of_engine(ours.engine))


def median(values: Sequence[float | None]) -> float | None:
    """None where one of them is."""
    return None if None in values or not values else statistics.median(values)  # type: ignore[type-var]
