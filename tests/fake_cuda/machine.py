"""The machine behind the tensors: its devices, their memory, the copies under way, and what was counted.

    host      launch  launch  copy (non-blocking)  launch  …  event.synchronize()
    device    queue   [copy, copy, …]              until an event or a wait, they are under way:
                                                   the source must stay as it is, the target holds poison

vLLM: none
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch

POISON = 0x7B
"""Each byte of a host tensor that a copy is on its way to."""
GRANULE = 512  # torch's caching allocator rounds up to this


class DeviceMismatchError(RuntimeError):
    """A real GPU says "expected all tensors to be on the same device", or "illegal memory access"."""


class HostWaitError(RuntimeError):
    """The host would have waited for the device."""


class CaptureError(RuntimeError):
    """A real GPU says "operation not permitted when stream is capturing"."""


class EscapedMemoryError(RuntimeError):
    """Memory of a graph's pool is held behind the recording: every replay would write over it."""


class FreedMemoryError(RuntimeError):
    """A real GPU computes with whatever lies there by then."""


class PinnedMemoryError(RuntimeError):
    """A real GPU reads half of the old content and half of the new."""


def where() -> str:
    """file:line and name of the innermost frame of the engine's own, or else of a test."""
    frame, said = sys._getframe(1), "?"
    while frame is not None:
        path = frame.f_code.co_filename
        if "/folovllm/" in path:
            return f"{path.rpartition('/folovllm/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"
        if said == "?" and "/tests/" in path and "/fake_cuda/" not in path:
            said = f"{path.rpartition('/tests/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return said


@dataclass(eq=False)
class Ledger:
    """Bytes that are alive, and the most there ever were."""

    live: int = 0
    peak: int = 0

    def take(self, num_bytes: int) -> None:
        self.live += num_bytes
        self.peak = max(self.peak, self.live)


class Allocation:
    """A piece of device memory, alive as long as a tensor holds it; views share it."""

    __slots__ = ("__weakref__", "device", "graph", "ledger", "num_bytes", "place")

    def __init__(self, device: Device, num_bytes: int) -> None:
        self.device, self.graph, self.place = device, device.capturing, ""
        self.num_bytes = -(-num_bytes // GRANULE) * GRANULE
        self.ledger = device.memory if self.graph is None else self.graph.pool
        self.ledger.take(self.num_bytes)
        if self.graph is not None:
            self.place = where()
            self.graph.born.append(weakref.ref(self))

    def __del__(self) -> None:
        self.ledger.live -= self.num_bytes


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's memory, whatever its dtype: NaN equals itself there."""
    return tensor.reshape(-1).view(torch.uint8)


@dataclass(slots=True, eq=False)
class Copy:
    """A copy under way. For an upload `snapshot` is what it must still find, else what it will bring."""

    kind: Literal["to device", "to host"]
    host: torch.Tensor
    snapshot: torch.Tensor
    place: str

    def finish(self) -> None:
        if self.kind == "to host":
            with torch.inference_mode():
                self.host.copy_(self.snapshot)
        elif not torch.equal(as_bytes(self.host), as_bytes(self.snapshot)):
            raise PinnedMemoryError(f"pinned memory was written while the copy queued at {self.place} was under way")


@dataclass(slots=True)
class Recorded:
    """One kernel of a graph: what computes it again, and whose memory from outside the graph it reads."""

    compute: Callable[[], object]
    outside: list[weakref.ref[Allocation]]
    place: str


class Recording:
    """A graph while it is recorded and afterwards."""

    def __init__(self, device: Device, pool: Ledger) -> None:
        self.device, self.pool = device, pool
        self.kernels: list[Recorded] = []
        self.born: list[weakref.ref[Allocation]] = []

    def end(self) -> None:
        self.device.capturing = None
        for allocation in (reference() for reference in self.born):
            if allocation is not None:
                raise EscapedMemoryError(
                    f"{allocation.num_bytes} bytes of a graph's pool are held behind its recording, "
                    f"allocated at {allocation.place}"
                )
        self.born = []


@dataclass(slots=True, eq=False)
class Device:
    """One GPU with its default stream."""

    machine: FakeCuda
    index: int
    total_bytes: int
    memory: Ledger = field(default_factory=Ledger)
    pools: weakref.WeakSet[Ledger] = field(default_factory=weakref.WeakSet)
    """Of graphs that are alive."""
    copies: list[Copy] = field(default_factory=list)
    """Under way, in the order of the stream."""
    capturing: Recording | None = None

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cuda", self.index)

    @property
    def bytes_in_use(self) -> int:
        """Of tensors, of the graphs' pools (which keep what they once had), and of the driver itself."""
        return self.machine.context_bytes + self.memory.live + sum(pool.peak for pool in self.pools)

    def wait(self, what: str) -> None:
        """The host waits until all that is queued has been done."""
        self.refuse_in_capture(what)
        self.machine.waits.append((what, where()))
        self.finish_copies(len(self.copies))
        if self.machine.waits_are_errors:
            raise HostWaitError(f"{what} at {where()}")

    def finish_copies(self, count: int) -> None:
        done, self.copies = self.copies[:count], self.copies[count:]
        try:
            for copy in done:
                copy.finish()
        except PinnedMemoryError:  # said once; what was queued behind it may be as wrong
            self.copies = []
            raise

    def settle(self, host: torch.Tensor) -> None:
        """What is queued from now on finds earlier copies of the same host memory finished: a stream is in order."""
        storage = host.untyped_storage()._cdata
        mine = [copy for copy in self.copies if copy.host.untyped_storage()._cdata == storage]
        self.copies = [copy for copy in self.copies if copy not in mine]
        for copy in mine:
            copy.finish()

    def refuse_in_capture(self, what: str) -> None:
        if self.machine.is_capturing:
            raise CaptureError(f"{what} while a graph is being recorded, at {where()}")

    def spoil(self, made: list[torch.Tensor]) -> None:
        """Memory that nobody has written yet holds what would be noticed: NaN, and numbers that are no place. In a
        graph's pool it does so before each replay."""
        if not self.machine.numbers:
            return
        for tensor in made:
            nothing = float("nan")
            if not tensor.is_floating_point():
                nothing = POISON if tensor.element_size() == 1 else -(1 << 30)
            with torch.inference_mode():
                tensor.fill_(nothing)
            if self.capturing is not None:
                self.capturing.kernels.append(Recorded(partial(tensor.fill_, nothing), [], where()))

    def launched(self, name: str, compute: Callable[[], object], reads: list[Allocation]) -> None:
        """A kernel was launched: it is counted, and put into the graph that is being recorded."""
        self.machine.launches[name] += 1
        recording = self.capturing
        if recording is None:
            self.refuse_in_capture(f"{name} on {self.torch_device}, which is not the device of the recording,")
            return
        outside = [weakref.ref(allocation) for allocation in reads if allocation.graph is not recording]
        recording.kernels.append(Recorded(compute, outside, where()))


class FakeCuda:
    """What a test asks afterwards.

    Attributes:
        numbers: whether tensors hold numbers.
        launches: kernels and copies by name; a replay is one "graph".
        waits: what made the host wait, and where.
        uploads: bytes of each copy from the host.
        variants: of each Triton kernel, how often each of its variants was launched.
        capability: the compute capability, Hopper's until a test says another.
        compiled: the kernels whose variants were seen for the first time, and where, in order.
    """

    def __init__(self, *, numbers: bool, total_bytes: int, num_devices: int, context_bytes: int) -> None:
        self.numbers, self.context_bytes = numbers, context_bytes
        self.devices = [Device(self, index, total_bytes) for index in range(num_devices)]
        self.waits_are_errors, self.capability = False, (9, 0)
        self.pinned: dict[int, torch.UntypedStorage] = {}  # kept alive: an address must not come back
        self.graph_pools: weakref.WeakValueDictionary[tuple[int, int], Ledger] = weakref.WeakValueDictionary()
        self.num_pools = 0
        self.variants: dict[str, Counter[tuple]] = defaultdict(Counter)
        self.broken: str | None = None
        self._current = threading.local()
        self.reset_counts()

    def reset_counts(self) -> None:
        self.launches: Counter[str] = Counter()
        self.waits: list[tuple[str, str]] = []
        self.uploads: list[int] = []
        self.compiled: list[tuple[str, str]] = []

    @property
    def data_device(self) -> str:
        """Where the numbers really lie."""
        return "cpu" if self.numbers else "meta"

    @property
    def current(self) -> int:
        """The current device of this thread, which a new thread does not inherit."""
        return getattr(self._current, "index", 0)

    @current.setter
    def current(self, index: int) -> None:
        self._current.index = index

    @property
    def is_capturing(self) -> bool:
        return any(device.capturing is not None for device in self.devices)

    def device(self, device: torch.device | str | int | None = None) -> Device:
        if isinstance(device, int):
            return self.devices[device]
        index = None if device is None else torch.device(device).index
        return self.devices[self.current if index is None else index]

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self.pinned

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self.pinned[storage._cdata] = storage
        return tensor

    @contextmanager
    def no_waits(self) -> Iterator[None]:
        """Inside, the host must not wait."""
        before, self.waits_are_errors = self.waits_are_errors, True
        try:
            yield
        finally:
            self.waits_are_errors = before

    def check(self) -> None:
        """Ask the driver for anything. After a fault on the device (`broken`) every answer is that fault."""
        if self.broken is not None:
            raise torch.AcceleratorError(f"CUDA error: {self.broken}")
