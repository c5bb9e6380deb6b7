"""Rounds in turn: each contestant runs once in every round, so that a slow minute slows all of them.

    warm-up   ours  peer        round 1   ours  peer        round 2   ours  peer        ...
                                          └ the machine is measured before each run

vLLM: none
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from folovllm.bench.report import Line, Report, Samples
from folovllm.bench.runs import FoloVLLM, Run, Work
from folovllm.bench.workload import progress_bar
from workshop.bench.contestant import PEERS, Contestant, PeerMissingError, PeerSetup
from workshop.bench.roofline import ModelCost, Probe, exceeds_caches

SETTLE = 0.3  # seconds; the threads of Intel's OpenMP look for work for 0.2 after their last
Result = TypeVar("Result")


def keep(args: argparse.Namespace, so_far: Report) -> None:
    """What has been measured by now goes where --json wants the result, all of it or nothing: a run that is cut keeps
    it."""
    if args.json in (None, "-") or ((path := Path(args.json)).exists() and not path.is_file()):  # a pipe
        return
    so_far.save(new := path.with_name(f"{path.name}.new"))
    os.replace(new, path)


def take_turns(
    plays: Sequence[tuple[str, Callable[[int], Result]]],
    rounds: int,
    tick: Callable[[str], None],
    *,
    before_each: Callable[[bool], None] = lambda warm_up: None,
    settle: float = 0.0,
    back_and_forth: bool = False,
    after_round: Callable[[list[list[Result]]], object] = lambda results: None,
) -> list[list[Result]]:
    """Each one's results of all rounds; round 0 warms up and is left out.

    Args:
        plays: names, and what plays a round of this number.
        tick: gets what begins.
        before_each: called before every turn, to measure the machine; True in the round that warms up.
        back_and_forth: who comes first in a round comes last in the next.
        after_round: gets the results by then; not of the warm-up.
    """
    results: list[list[Result]] = [[] for _ in plays]
    for number in range(rounds + 1):
        for at in range(len(plays)) if number % 2 or not back_and_forth else reversed(range(len(plays))):
            name, play = plays[at]
            tick(f"round {number}/{rounds}: {name}" if number else f"warm-up: {name}")
            gc.collect()  # here, and not in the middle of a run
            time.sleep(settle)
            before_each(number == 0)
            result = play(number)
            if number:
                results[at].append(result)
        if number:
            after_round(results)
    return results


@dataclass(frozen=True)
class Rounds:
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

    def lines(self, args: argparse.Namespace, samples: Callable[[list[Run]], Samples], **facts: Any) -> list[Line]:
        """A line for each contestant, with what is common to all of them."""
        found: list[Line] = []
        for contestant, runs in zip(self.contestants, self.runs, strict=True):
            names = {"engine": contestant.name, "dtype": getattr(contestant, "dtype", None) or args.dtype}
            found.append((names | {"batch": getattr(contestant, "batch_size", None)} | facts, samples(runs)))
        return found


def run_rounds(
    setup: PeerSetup,
    peers: Sequence[str],
    rounds: int,
    work: Callable[[int], Work],
    *,
    prepare: Callable[[FoloVLLM], object] = lambda ours: None,
    after_round: Callable[[Rounds], object] = lambda found: None,
    **options: Any,
) -> Rounds:
    """Our engine and its peers. `work`: each round's prompts, round 0 warms up. `prepare` gets our engine before it
    runs, `after_round` what there is by then; `options`: of our engine, by their names."""
    with setup.cleanup, progress_bar(1 + len(peers) + (rounds + 1) * (1 + len(peers))) as tick:
        tick("loading folovllm")
        ours = FoloVLLM(setup.model, setup.dtype, setup.device, **{"max_model_len": setup.max_model_len, **options})
        prepare(ours)
        contestants: list[Contestant] = [ours]
        missing: list[str] = []
        for name in peers:
            tick(f"loading {name}")
            try:
                contestants += PEERS[name](setup)
            except PeerMissingError as error:
                missing.append(f"{name} is not here: {error}")
        probe = Probe(ours.engine.device, ours.engine.dtype)
        plays: list[tuple[str, Callable[[int], Run]]] = [
            (contestant.name, lambda number, each=contestant: each.run(*work(number)))  # type: ignore[misc]
            for contestant in contestants
        ]
        settle = SETTLE if len(plays) > 1 else 0.0
        cost = ModelCost.of_engine(ours.engine)
        runs = take_turns(
            plays, rounds, tick, before_each=lambda first: probe.measure(warm_up=first), settle=settle,
            after_round=lambda runs: after_round(Rounds(contestants, runs, missing, probe, cost)),
        )  # fmt: skip
    return Rounds(contestants, runs, missing, probe, cost)
