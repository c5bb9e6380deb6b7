"""The group of ranks that compute one model together, as one of them sees it.

    rank 0   the whole engine: schedules, computes its part of the model, samples
    rank 1   computes its part of what rank 0 sends it, and knows nothing else
      …

Two kinds of traffic. What rank 0 asks for goes over a socket to each of the others: it needs an answer from none, and
its end tells that a process has gone. What all ranks do together, sums among it, goes through memory that they share,
or through torch.distributed (collectives.py).

vLLM: distributed/parallel_state.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

from folovllm.distributed.collectives import Collectives
from folovllm.distributed.link import Link
from folovllm.errors import EngineDeadError

T = TypeVar("T")


def part(total: int, rank: int, world_size: int, unit: int = 1) -> range:
    """Which of `total` things, cut into parts as equal as whole units allow, are this rank's: 10 by 4 in units of 1
    are 0-1, 2-4, 5-6 and 7-9."""
    units = -(-total // unit)
    first, end = (min(total, units * at // world_size * unit) for at in (rank, rank + 1))
    return range(first, end)


class GroupCoordinator:
    """Args:
    links: to the others' processes. Rank 0 has one to each, by their ranks; the others have one, to rank 0.
    """

    def __init__(self, rank: int, world_size: int, links: dict[int, Link], collectives: Collectives) -> None:
        self.rank, self.world_size, self.links, self.collectives = rank, world_size, links, collectives
        self._dead: EngineDeadError | None = None

    @property
    def address(self) -> int | None:
        """Of what csrc/kernels.h calls a Group; None: the sums are not made there."""
        return self.collectives.address

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' `x`, in the order of the ranks where a CPU adds, written over it."""
        self._together(lambda: self.collectives.all_reduce(x))
        return x

    def gather(self, x: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """Columns of all ranks side by side. Rank r has x [num_rows, widths[r]], and rank 0 gets [num_rows, all of
        them]; the others get no rows."""
        parts = self._together(lambda: self.collectives.gather(x, widths))
        return x.new_empty(0, sum(widths)) if parts is None else torch.cat(parts, 1)

    def send(self, numbers: Sequence[int]) -> None:
        """From rank 0 to all."""
        self.check()
        for link in self.links.values():
            try:
                link.send_numbers(numbers)
            except OSError as error:
                raise self.fail() from error

    def receive(self) -> list[int]:
        """What rank 0 has sent. Raises EOFError: it has gone."""
        return self.links[0].receive_numbers()

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        """Rank 0's `x`, which the others have empty and of the same shape."""
        if x.device.type != "cpu":
            self.collectives.broadcast(x)
        elif self.rank:
            self.links[0].receive_into(x)
        else:
            for link in self.links.values():
                try:
                    link.send_tensor(x)
                except OSError as error:
                    raise self.fail() from error
        return x

    def check(self) -> None:
        """Raises EngineDeadError: a rank has gone, and what was computed since is void."""
        if self._dead is not None:
            raise self._dead
        if (hangs := self.collectives.failed()) is not None:
            raise self.fail(hangs)

    def fail(self, hangs: int = -1) -> EngineDeadError:
        """The ranks are no longer at the same step: this group computes nothing any more.

        hangs: the rank that did not come; -1: one has ended, or this one has.
        """
        if self._dead is None:
            rank = next((rank for rank, link in self.links.items() if link.is_closed()), hangs)
            if rank != -1 and rank != hangs:
                why = f"rank {rank} of {self.world_size} {self.links[rank].last_words()}"
            elif rank != -1:
                why = f"rank {rank} of {self.world_size} does not answer: for distributed_timeout_seconds nothing came"
            else:
                why = "a step failed in its middle, and the ranks are no longer at the same place"
            self._dead = EngineDeadError(f"{why}; start the engine anew")
            self.close()
        return self._dead

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Of rank 0, from what it sends to what it has computed: if that fails in between, no rank knows where the
        others are."""
        try:
            yield
        except EngineDeadError:
            raise
        except BaseException as error:
            raise self.fail() from error

    def _together(self, work: Callable[[], T]) -> T:
        try:
            found = work()
        except RuntimeError as error:  # torch.distributed's: a connection was closed, or its time is over
            raise self.fail() from error
        self.check()
        return found

    def close(self) -> None:
        """The end of this group: the other ranks' processes end, too."""
        for link in self.links.values():
            link.close()
