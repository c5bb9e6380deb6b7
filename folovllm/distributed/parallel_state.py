"""The group of ranks that compute one model together, as one of them sees it.

    rank 0   the whole engine: schedules, computes its part of the model, samples
    rank 1   computes its part of what rank 0 asks for, and knows nothing else
      …

What rank 0 asks for goes over a socket to each of the others. What all ranks do together goes through memory that they
share, or through torch.distributed (collectives.py).

vLLM: distributed/parallel_state.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import torch

from folovllm.distributed.collectives import Collectives
from folovllm.distributed.link import Link
from folovllm.errors import EngineDeadError

T = TypeVar("T")
LOADING = 3600.0
"""Seconds for the weights. A rank that ends before is seen at once."""


def part(total: int, rank: int, world_size: int, unit: int = 1) -> range:
    """Which of `total` things, cut into parts as equal as whole units allow, are this rank's: 10 by 4 in units of 1
    are 0-1, 2-4, 5-6 and 7-9."""
    units = -(-total // unit)
    first, end = (min(total, units * at // world_size * unit) for at in (rank, rank + 1))
    return range(first, end)


class GroupCoordinator:
    """links: to the others' processes. Rank 0 has one to each, by their ranks; the others have one, to rank 0."""

    def __init__(self, rank: int, world_size: int, links: dict[int, Link], collectives: Collectives) -> None:
        self.rank, self.world_size, self.links, self.collectives = rank, world_size, links, collectives
        self._dead: EngineDeadError | None = None

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' `x`, written over it; in the order of the ranks where a CPU adds."""
        self.collectives.all_reduce(x)
        self.check()
        return x

    def gather(self, x: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """Columns of all ranks side by side. Rank r has x [num_rows, widths[r]], and rank 0 gets [num_rows, all of
        them]; the others get no rows."""
        parts = self.collectives.gather(x, widths)
        self.check()
        return x.new_empty(0, sum(widths)) if parts is None else torch.cat(parts, 1)

    def lead(self, message: list[int], x: torch.Tensor | None, work: Callable[[], T]) -> T:
        """Rank 0: `message` and `x` go to all, then `work` is done here. Raises EngineDeadError: that has failed in
        between, and no rank knows where the others are."""
        self.check()
        try:
            for link in self.links.values():
                link.send(message)
                if x is not None and x.device.type == "cpu":
                    link.send_tensor(x)
            if x is not None and x.device.type != "cpu":
                self.collectives.broadcast(x)
            return work()
        except EngineDeadError:
            raise
        except BaseException as error:
            raise self.fail() from error

    def fewest(self, counts: list[int]) -> list[int]:
        """Rank 0's counts, or another rank's where it has fewer. All ranks learn them."""
        all_of_them = [counts, *(link.hear(rank, LOADING) for rank, link in self.links.items())]
        least = [min(each) for each in zip(*all_of_them, strict=True)]
        for link in self.links.values():
            link.send(least)
        return least

    def receive(self, x: torch.Tensor) -> torch.Tensor:
        """Another rank: what came with a message. It says the shape, which `x` has."""
        if x.device.type == "cpu":
            self.links[0].receive_into(x)
        else:
            self.collectives.broadcast(x)
        return x

    def check(self) -> None:
        """Raises EngineDeadError: a rank has gone, and what was computed since is void."""
        hangs = self.collectives.failed()
        if self._dead is not None or hangs is not None:
            raise self.fail(hangs)

    def fail(self, hangs: int | None = None) -> EngineDeadError:
        """This group computes nothing any more. hangs: a rank for which the others waited too long; none: why is found
        out."""
        if self._dead is None:
            self._dead = EngineDeadError("a step failed in its middle, and the ranks are apart; start the engine anew")
            gone = next((rank for rank, link in self.links.items() if link.is_closed(0.2)), hangs)
            with suppress(KeyError):  # it is none of those at the other ends
                try:
                    while True:
                        self.links[-1 if gone is None else gone].hear(gone or 0, 1.0)
                except EngineDeadError as error:
                    self._dead = error
            self.close()
        return self._dead

    def close(self) -> None:
        """The other ranks' processes end, too."""
        for link in self.links.values():
            link.close()
