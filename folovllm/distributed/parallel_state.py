"""The group of ranks that compute one model together, as one of them sees it.

    rank 0   the whole engine: schedules, computes its part of the model, samples
    rank 1   computes its part of what rank 0 asks for, and knows nothing else

What rank 0 asks for goes over a socket to each of the others, which closes when a process ends, however it ends. What
all ranks do together goes through collectives.py.

vLLM: distributed/parallel_state.py, distributed/device_communicators/shm_broadcast.py
"""

from __future__ import annotations

import ctypes
import json
import select
import socket
import subprocess
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from folovllm.config import EngineConfig
from folovllm.distributed.collectives import Collectives, SharedMemory, TorchCollectives
from folovllm.distributed.forks import keep_from_forks
from folovllm.errors import EngineDeadError

T = TypeVar("T")
LONGEST = 1 << 26  # bytes of a message: a million blocks that are moved
LOADING = 3600.0  # seconds for the weights; a rank that ends before is seen at once


class Peer:
    """An end of the socket between rank 0 and another. process: that at the other end, where it was started here."""

    def __init__(self, connection: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self.connection, self.process = connection, process
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Any) -> None:
        """What JSON can say."""
        body = json.dumps(message).encode()
        self.connection.sendall(len(body).to_bytes(8, "little") + body)

    def receive(self, seconds: float | None = None) -> Any:
        """The next message. Raises TimeoutError: none comes; ValueError: it is none; EOFError, OSError: it has gone."""
        before = self.connection.gettimeout()
        self.connection.settimeout(seconds)
        length = bytearray(8)
        self.fill(memoryview(length))
        if (size := int.from_bytes(length, "little")) > LONGEST:
            raise ValueError(f"a message must be at most {LONGEST} bytes long, got {size}")
        body = bytearray(size)
        self.fill(memoryview(body))
        self.connection.settimeout(before)
        return json.loads(body)

    def recv(self, rank: int, seconds: float) -> Any:
        """The next message of this rank. Raises EngineDeadError: none comes, or a text, which says how it failed."""
        waited = max(seconds, self.connection.gettimeout() or 0.0)  # before it was asked for a reason, too
        try:
            message = self.receive(seconds)
        except TimeoutError:
            message = f"does not answer: nothing came for {waited:g} s"
        except ValueError:
            message = "sends what is no message"
        except (EOFError, OSError):
            message = "has gone"
            with suppress(subprocess.TimeoutExpired):
                if self.process is not None:
                    message = f"has ended with status {self.process.wait(1.0)}"
        if isinstance(message, str):
            raise EngineDeadError(f"rank {rank} {message}; start the engine anew")
        return message

    def is_closed(self, seconds: float = 0.0) -> bool:
        """Whether the other side has gone, or goes within so many seconds. What it said before may be unread."""
        if self.connection.fileno() < 0:  # closed here
            return True
        asked = select.poll()
        asked.register(self.connection, getattr(select, "POLLRDHUP", select.POLLHUP))  # macOS tells it by the other
        return bool(asked.poll(1000 * seconds))

    def close(self) -> None:
        """The other side's process ends, too. It has nothing to bring to an end: it is not waited for."""
        self.connection.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def fill(self, view: memoryview) -> None:
        """With bytes that come after a message."""
        while view:
            if not (count := self.connection.recv_into(view)):
                raise EOFError("the other side has gone")
            view = view[count:]


def part(total: int, rank: int, world_size: int, unit: int = 1) -> range:
    """Which of `total` things, cut into parts as equal as whole units allow, are this rank's: 10 by 4 in units of 1
    are 0-1, 2-4, 5-6 and 7-9."""
    units = -(-total // unit)
    first, end = (min(total, units * at // world_size * unit) for at in (rank, rank + 1))
    return range(first, end)


class GroupCoordinator:
    """links: to the others' processes. Rank 0 has one to each, by their ranks; the others have one, to rank 0."""

    def __init__(self, rank: int, world_size: int, links: dict[int, Peer], collectives: Collectives) -> None:
        self.rank, self.world_size, self.links, self.collectives = rank, world_size, links, collectives
        self._dead: EngineDeadError | None = None
        self.close = weakref.finalize(self, _close, list(links.values()))
        """The other ranks' processes end, too; so they do when this object or Python ends."""
        keep_from_forks(self)

    def forked(self, error: EngineDeadError) -> None:
        self._dead = error
        self.close.detach()
        for link in self.links.values():
            link.connection.close()  # else the ranks would not see their parent's end
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.collectives))  # gloo's end would wait for its threads

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
            for rank, link in self.links.items():
                try:
                    link.send(message)
                    if x is not None and x.device.type == "cpu":
                        link.connection.sendall(_bytes_of(x))
                except TimeoutError:  # the socket is full, as this rank reads nothing
                    raise self.fail(rank) from None
            if x is not None and x.device.type != "cpu":
                self.collectives.broadcast(x)
            return work()
        except EngineDeadError:
            raise
        except BaseException as error:
            raise self.fail() from error

    def fewest(self, counts: list[int]) -> list[int]:
        """Of each of `counts`, which every rank gives, the least. All ranks learn them."""
        if self.rank:
            self.links[0].send(counts)
            return self.links[0].receive()
        all_of_them = [counts, *(link.recv(rank, LOADING) for rank, link in self.links.items())]
        least = [min(each) for each in zip(*all_of_them, strict=True)]
        for link in self.links.values():
            link.send(least)
        return least

    def receive(self, x: torch.Tensor) -> torch.Tensor:
        """Another rank: what came with a message. It says the shape, which `x` has."""
        if x.device.type == "cpu":
            self.links[0].fill(_bytes_of(x))
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
                        self.links[-1 if gone is None else gone].recv(gone or 0, 1.0)
                except EngineDeadError as error:
                    self._dead = error
            self.close()
        return self._dead


def join(
    rank: int, links: dict[int, Peer], shared: Any, device: torch.device, config: EngineConfig
) -> GroupCoordinator:
    """When all are there. shared: a file in memory, or a store of torch.distributed."""
    size, timeout = config.parallel_config.tensor_parallel_size, config.parallel_config.distributed_timeout_seconds
    connections = [link.connection for link in links.values()]
    for connection in connections if rank == 0 else ():
        connection.settimeout(timeout)  # of what is sent
    in_order = device.type == "cpu" or config.model_config.batch_invariant
    if not isinstance(shared, dist.Store):
        sockets = [each.fileno() for each in connections]
        collectives: Collectives = SharedMemory(rank, size, shared.fileno(), sockets, timeout)
    else:
        kind: Any = dist.ProcessGroupNCCL if device.type == "cuda" else dist.ProcessGroupGloo
        options = kind.Options() if device.type == "cuda" else kind._Options()
        options._timeout = timedelta(seconds=timeout)
        if device.type == "cpu":  # at the address that leads to the other ranks: the loopback, if they are here
            address = connections[0].getsockname()
            options._devices = [kind.create_device(hostname=address[0] if address else "127.0.0.1")]
        collectives = TorchCollectives(rank, size, kind(shared, rank, size, options), in_order=in_order)
    return GroupCoordinator(rank, size, links, collectives)


def _close(links: list[Peer]) -> None:
    for link in links:
        link.close()


def _bytes_of(x: torch.Tensor) -> memoryview:
    return x.view(-1).view(torch.uint8).numpy().data
