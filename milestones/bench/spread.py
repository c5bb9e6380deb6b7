"""What a ratio of two measured times is worth: an interval that holds the true one, from a handful of rounds.

Nothing is assumed of how times are distributed; they have long tails, and a mean would follow them. Both intervals are
read off sorted ratios, and both say how sure they are, which with few rounds is less than 95%.

    apart     two runs, a and b: every b over every a, sorted. The interval leaves out as many at each end as the
              Mann-Whitney test allows, so it excludes 1 exactly where that test distinguishes a from b.
    in turn   n ratios, of round i of both, sorted. Each is above or below the true median with a
              chance of 1/2, so few of n on one side are as likely as few heads of n coins.

    rounds               3      4      5      6      7       8
    apart, of each      90%  97.1%  96.8%  95.9%  96.2%   95.0%  sure of the interval
    in turn             75%  87.5%  93.8%  96.9%  98.4%   99.2%

vLLM: none
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LEVEL = 0.95


@dataclass(frozen=True)
class Spread:
    """A ratio in the middle of an interval; `level` is the chance that the interval holds the true ratio."""

    ratio: float
    low: float
    high: float
    level: float

    @property
    def verdict(self) -> str:
        """ "above" or "below" 1, "noise" where 1 is inside, "too few rounds" where that cannot be said."""
        if self.level < LEVEL:
            return "too few rounds"
        if self.low > 1:
            return "above"
        return "below" if self.high < 1 else "noise"


def apart(a: Sequence[float], b: Sequence[float]) -> Spread:
    """b over a, measured one after the other.

    Raises:
        ValueError: one of them is empty, or has a number that is not positive.
    """
    _check(a=a, b=b)
    ratios = sorted(new / old for old in a for new in b)
    ways = mann_whitney_ways(len(a), len(b))
    return _interval(ratios, ways)


def in_turn(a: Sequence[float], b: Sequence[float]) -> Spread:
    """b over a, of rounds that were measured in turn.

    Raises:
        ValueError: they are not as many, empty, or not positive.
    """
    _check(a=a, b=b)
    ratios = sorted(new / old for old, new in zip(a, b, strict=True))
    return _interval(ratios, [math.comb(len(ratios), heads) for heads in range(len(ratios) + 1)])


def mann_whitney_ways(n: int, m: int) -> list[int]:
    """In how many orders of n + m values u of the n * m pairs are the wrong way round, for u = 0, 1, ..., n * m."""
    ways = [[1] + [0] * (n * m) for _ in range(m + 1)]  # ways[j]: with none of the n, and j of the m
    for _ in range(n):
        for j in range(1, m + 1):
            # The largest value is one of the n, and above all j of the m; or it is one of the m.
            ways[j] = [(ways[j][u - j] if u >= j else 0) + ways[j - 1][u] for u in range(n * m + 1)]
    return ways[m]


def _interval(ratios: list[float], ways: list[int]) -> Spread:
    """Leave out as many at each end as LEVEL allows; `ways` is how often chance alone gives 0, 1, ... on one side."""
    total, cut = sum(ways), 0
    tail = ways[0]
    while 2 * (tail + ways[cut + 1]) <= (1 - LEVEL) * total:
        cut += 1
        tail += ways[cut]
    return Spread(statistics.median(ratios), ratios[cut], ratios[-1 - cut], 1 - 2 * tail / total)


def _check(**samples: Sequence[float]) -> None:
    for name, values in samples.items():
        if not values or not all(value > 0 for value in values):
            raise ValueError(f"{name} must be positive numbers, at least one, got {list(values)}")


def is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def samples_of(data: dict[str, Any], number: int, column: str) -> list[float]:
    """Each round's figure of a row; empty in a file that has none, as older ones."""
    for samples in (data.get("samples") or [], (data.get("details") or {}).get("samples") or []):
        values = samples[number].get(column, []) if number < len(samples) else []
        if values and all(map(is_positive, values)):
            return [float(value) for value in values]
    return []
