"""Requests that arrive one after another, played to a milestone's engine: when did each of their tokens come?

    wave 0    a ├─┬─┬─┬─┬─┬─┬─┬─┬─┤         there at the start
    wave 1          b ├──────┬─┬─┬─┤        comes when each request so far has `after` tokens, or has ended
    seconds   0     ↑ arrival ↑ first token

All that the workloads say is worked out from these times.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from milestones.bench.process import Worker
from milestones.spec import MilestoneError

LEAST_AGREEMENT = 0.9


@dataclass(frozen=True)
class Wave:
    """Requests that arrive together."""

    prompts: list[list[int]]
    max_tokens: list[int]
    after: int = 0


@dataclass(frozen=True)
class Played:
    """What became of the requests, in the order of their arrival; times in seconds from the start."""

    seconds: float
    arrivals: list[float]
    times: list[list[float]]
    """When each token of each request came."""
    tokens: list[list[int]]
    cached: list[int | None]
    """Prompt tokens that each request did not have to compute; None where the milestone does not say."""

    @property
    def ttft(self) -> list[float]:
        return [times[0] - arrival for times, arrival in zip(self.times, self.arrivals, strict=True)]


def play(worker: Worker, waves: Sequence[Wave], enough: int | None = None) -> Played:
    """`enough`: when each request has so many tokens, the rest is not waited for."""
    request = {"waves": [vars(wave) for wave in waves], "enough": enough}
    played = Played(**worker.ask(request))
    wanted = [length for wave in waves for length in wave.max_tokens]
    least = wanted if enough is None else [enough] * len(wanted)
    if any(len(tokens) < few for tokens, few in zip(played.tokens, least, strict=True)):
        raise MilestoneError(f"{worker.name} gave shorter outputs than were asked for")
    return played


def draw_prompt(seed: str, length: int, vocab_size: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(vocab_size) for _ in range(length)]


def agreement(mine: Played, reference: Played) -> float:
    """The share of tokens that are the same, in each request up to the first that is not: behind that one a request
    goes its own way."""
    same = total = 0
    for tokens, expected in zip(mine.tokens, reference.tokens, strict=True):
        pairs = list(zip(tokens, expected, strict=False))  # what came after `enough` was not waited for everywhere
        total += len(pairs)
        same += next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs))
    return same / total


def check_agreement(name: str, share: float, dtype: str) -> None:
    """Other tokens are a mistake, where rounding does not turn one token into another: in float32, a near tie aside."""
    if dtype == "float32" and share < LEAST_AGREEMENT:
        raise MilestoneError(
            f"{name} gives other tokens: only {share:.0%} are the first milestone's, and {LEAST_AGREEMENT:.0%} are "
            "what rounding explains"
        )


def in_turn(workers: Sequence[Worker], number: int) -> list[Worker]:
    """Who goes first goes last the next time: what warms up or cools down then favours nobody."""
    return list(workers) if number % 2 else list(reversed(workers))
