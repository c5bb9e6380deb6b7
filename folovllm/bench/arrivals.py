"""When requests arrive: at what moments, and how many may be under way at the same time.

    request_rate=inf                        all at once
    request_rate=inf, max_concurrency=8     closed loop: 8 clients, each asks anew when it has its answer
    request_rate=4                          Poisson: at random moments, 4 a second in the mean
    request_rate=4, burstiness=0.25         gamma: the same mean, in clumps; above 1 more even than Poisson

The gaps between arrivals are gamma(burstiness, 1 / (request_rate * burstiness)): their mean is 1 / request_rate, and
their deviation is that mean over the root of burstiness. At 1 they are exponential.

vLLM: benchmarks/serve.py (get_request)
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Arrivals:
    """Raises ValueError: a rate or burstiness that is not positive, fewer than one at a time, or burstiness at a rate
    that is infinite, where there are no gaps."""

    request_rate: float = math.inf
    burstiness: float = 1.0
    max_concurrency: int | None = None

    def __post_init__(self) -> None:
        if not self.request_rate > 0:
            raise ValueError(f"request_rate must be positive, got {self.request_rate:g}")
        if not 0 < self.burstiness < math.inf:
            raise ValueError(f"burstiness must be positive and finite, got {self.burstiness:g}")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ValueError(f"max_concurrency must be at least 1, got {self.max_concurrency}")
        if math.isinf(self.request_rate) and self.burstiness != 1.0:
            raise ValueError(
                f"burstiness must be 1 without a request_rate, got {self.burstiness:g}: nothing is spread over time"
            )

    def times(self, count: int, seed: int) -> list[float]:
        """Seconds from the start at which each of `count` requests comes; the same seed draws the same."""
        if math.isinf(self.request_rate):
            return [0.0] * count
        rng = random.Random(f"arrivals {seed}")
        scale = 1 / (self.request_rate * self.burstiness)
        now, found = 0.0, []
        for _ in range(count):
            now += rng.gammavariate(self.burstiness, scale)
            found.append(now)
        return found

    def describe(self) -> str:
        clients = self.max_concurrency
        if math.isinf(self.request_rate):
            return "all at once" if clients is None else f"{clients} client{'s' if clients > 1 else ''}"
        text = f"{self.request_rate:g} requests/s"
        if self.burstiness != 1.0:
            text += f", burstiness {self.burstiness:g}"
        return text if clients is None else f"{text}, at most {clients}"


async def send(
    items: Sequence[Item], ask: Callable[[Item], Awaitable[Answer]], arrivals: Arrivals, seed: int = 0
) -> list[Answer]:
    """Ask each item at its moment; the answers are in the items' order.

    Where max_concurrency are under way, the next waits: its time begins when it is asked.
    """
    due, began = arrivals.times(len(items), seed), time.perf_counter()
    places = asyncio.Semaphore(arrivals.max_concurrency or max(len(items), 1))

    async def one(item: Item, moment: float) -> Answer:
        await asyncio.sleep(max(0.0, moment - (time.perf_counter() - began)))
        async with places:
            return await ask(item)

    return list(await asyncio.gather(*(one(item, moment) for item, moment in zip(items, due, strict=True))))


def add_arrivals(command: argparse.ArgumentParser) -> None:
    more: Any = {"nargs": "+", "action": "extend"}
    text = "clients that ask anew when answered: one load for each number (default: 1 and 8, or a preset's own)"
    command.add_argument("--max-concurrency", "--concurrency", type=int, metavar="N", help=text, **more)
    text = "requests a second at random moments: one load for each number; inf: all at once (default: none)"
    command.add_argument("--request-rate", type=float, metavar="X", help=text, **more)
    text = "of the gaps between arrivals: 1 is Poisson, less comes in clumps, more is more even (default: 1)"
    command.add_argument("--burstiness", type=float, metavar="X", help=text)


def arrivals_of(args: argparse.Namespace) -> list[Arrivals]:
    """One for each number that was given: closed loops, then rates. Raises ValueError: a wrong number."""
    clients, rates = args.max_concurrency or [], args.request_rate or []
    shape = 1.0 if args.burstiness is None else args.burstiness
    if args.burstiness is not None and not rates:
        raise ValueError(f"burstiness must come with a request_rate, got {shape:g} and none: add --request-rate X")
    loops = [Arrivals(max_concurrency=number) for number in clients]
    return loops + [Arrivals(rate, 1.0 if math.isinf(rate) else shape) for rate in rates]
