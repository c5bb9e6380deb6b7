"""Our engine and peers in turn, round by round, so that a slow minute of the machine slows all of them; and the machine
measured between their runs.

vLLM: none
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from folovllm.bench.contestant import Contestant, FoloVLLM, Run
from folovllm.bench.peers.apart import PeerSetup
from folovllm.bench.peers.registry import make_peers
from folovllm.bench.probe import Probe, exceeds_caches
from folovllm.bench.roofline import ModelCost
from folovllm.bench.workload import progress_bar

SETTLE = 0.3  # seconds; the threads of Intel's OpenMP look for work for 0.2 after their last


@dataclass(frozen=True)
class Race:
    """Contestants, ours the first, and each one's run of each round."""

    contestants: list[Contestant]
    runs: list[list[Run]]
    missing: list[str]
    """A line for each peer that is not here."""
    bandwidth: float
    weight_bytes: int
    """What one decode step of ours must read."""
    from_memory: bool
    """Whether it is more than caches hold, so that a share of the bandwidth says something."""


def race(
    setup: PeerSetup,
    peers: Sequence[str],
    rounds: int,
    work: Callable[[int], tuple[list[list[int]], list[int]]],
    **options: Any,
) -> Race:
    """`work` as in take_turns(); `options`: of our engine, by their names. Round 0 warms up."""
    with setup.cleanup, progress_bar(1 + len(peers) + (rounds + 1) * (1 + len(peers))) as tick:
        tick("loading folovllm")
        ours = FoloVLLM(setup.model, setup.dtype, setup.device, setup.max_model_len, **options)
        others, missing = make_peers(peers, setup, tick)
        contestants: list[Contestant] = [ours, *others]
        probe = Probe(ours.engine.device, ours.engine.dtype)
        runs = take_turns(contestants, rounds, work, tick, lambda warm_up: probe.measure(warm_up=warm_up))
    weight_bytes = ModelCost.of_engine(ours.engine).weight_bytes
    from_memory = exceeds_caches(weight_bytes, probe.device)
    return Race(contestants, runs, missing, probe.bandwidth, weight_bytes, from_memory)


def take_turns(
    contestants: Sequence[Contestant],
    rounds: int,
    work: Callable[[int], tuple[list[list[int]], list[int]]],
    tick: Callable[[str], None],
    before_each: Callable[[bool], None] = lambda warm_up: None,
) -> list[list[Run]]:
    """Each contestant's runs, one for each round; round 0 warms up and is left out.

    Args:
        work: a round's number -> prompts, and how many tokens each gets.
        tick: is told what begins.
        before_each: called before every run, to measure the machine at the same time; True in the round that warms up.
    """
    runs: list[list[Run]] = [[] for _ in contestants]
    for number in range(rounds + 1):
        prompts, num_tokens = work(number)
        for contestant, results in zip(contestants, runs, strict=True):
            size = getattr(contestant, "batch_size", None)
            label = contestant.name + (f" batch {size}" if size else "")
            tick(f"round {number}/{rounds}: {label}" if number else f"warm-up: {label}")
            gc.collect()  # here, and not in the middle of a run
            if len(contestants) > 1:
                time.sleep(SETTLE)
            before_each(number == 0)
            result = contestant.run(prompts, num_tokens)
            if number:
                results.append(result)
    return runs
