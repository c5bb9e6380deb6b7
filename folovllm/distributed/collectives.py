"""What all ranks of a group do together: add, and gather at rank 0.

    CPU, one machine              memory that all ranks have mapped, by our compiled code (csrc/group.cpp)
    CPU, no compiler or torchrun  torch.distributed's gloo, over sockets
    GPU                           torch.distributed's NCCL

On a CPU a sum is made in the order of the ranks, in float32, and rounded once: its bits are those of one process that
adds the same parts. NCCL's order depends on the size; where that matters (`in_order`) the parts are gathered and added.

vLLM: distributed/device_communicators/cpu_communicator.py, pynccl.py
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import torch

from folovllm.utils.cpu_kernels import DTYPE_NAMES, INT, POINTER, function, library

LINE, SLOT_BYTES = 64, 1 << 20
"""What a rank has of the shared memory: a line that says how far it is, and two slots for its numbers."""


class _Group(ctypes.Structure):
    """What csrc/kernels.h declares, field by field in the same order."""

    _fields_ = [
        *((name, INT) for name in ("rank", "size", "slot_bytes", "timeout_ms")),
        *((name, POINTER) for name in ("memory", "sockets")),
        *((name, INT) for name in ("num_sockets", "turn", "failed", "sums", "bytes")),
    ]


def memory_bytes(world_size: int) -> int:
    return world_size * (LINE + 2 * SLOT_BYTES)


class SharedMemory:
    """Args:
    memory: a file of memory_bytes(), zeros at first, and the same for all ranks.
    sockets: descriptors that close when another rank's process ends.
    """

    def __init__(self, rank: int, world_size: int, memory: int, sockets: Sequence[int], timeout: int) -> None:
        self.rank, self._view = rank, mmap.mmap(memory, memory_bytes(world_size))
        self._sockets = (ctypes.c_int32 * len(sockets))(*sockets)
        start = ctypes.addressof((ctypes.c_char).from_buffer(self._view))
        numbers = rank, world_size, SLOT_BYTES, 1000 * timeout, start, ctypes.addressof(self._sockets), len(sockets)
        self._group = _Group(*numbers)
        self.address: int | None = ctypes.addressof(self._group)

    def counts(self) -> tuple[int, int]:
        """Sums that were made, and this rank's bytes in them."""
        return self._group.sums, self._group.bytes

    def all_reduce(self, x: torch.Tensor) -> None:
        if x.dtype not in (torch.float32, torch.bfloat16):
            wide = x.float()
            self.all_reduce(wide)
            x.copy_(wide)
        else:
            function(f"all_reduce_{DTYPE_NAMES[x.dtype]}")(self.address, x.data_ptr(), x.numel())

    def gather(self, x: torch.Tensor, widths: Sequence[int]) -> list[torch.Tensor] | None:
        """All ranks' x [num_rows, widths[rank]] at rank 0, and None elsewhere."""
        x, parts, outs = x.contiguous(), None, None
        sizes = (INT * len(widths))(*(len(x) * width * x.itemsize for width in widths))
        if self.rank == 0:
            parts = [x.new_empty(len(x), width) for width in widths]
            outs = (POINTER * len(parts))(*(part.data_ptr() for part in parts))
        library().all_gather_bytes(POINTER(self.address), POINTER(x.data_ptr()), sizes, outs)
        return parts

    def broadcast(self, x: torch.Tensor) -> None:
        raise NotImplementedError("a CPU's tensors go over the sockets")

    def failed(self) -> int | None:
        """What kept a turn from its end: a rank that hangs, or -1: one has ended. None: nothing did."""
        failed = self._group.failed
        return None if not failed else max(-1, -1 - failed)


class TorchCollectives:
    """group: a ProcessGroupGloo or ProcessGroupNCCL. What keeps them from their end they raise as a RuntimeError."""

    address: int | None = None

    def __init__(self, rank: int, world_size: int, group: Any, *, in_order: bool) -> None:
        self.rank, self.world_size, self.group, self.in_order = rank, world_size, group, in_order
        self._sums = self._bytes = 0

    def counts(self) -> tuple[int, int]:
        return self._sums, self._bytes

    def all_reduce(self, x: torch.Tensor) -> None:
        self._sums, self._bytes = self._sums + 1, self._bytes + x.nbytes
        if not self.in_order:
            self.group.allreduce([x]).wait()
            return
        parts = self._all(x)
        total = parts[0].float()
        for part in parts[1:]:
            total += part
        x.copy_(total)

    def gather(self, x: torch.Tensor, widths: Sequence[int]) -> list[torch.Tensor] | None:
        wide = x.new_zeros(len(x), max(widths))  # torch.distributed gathers what is alike
        wide[:, : x.shape[1]] = x
        parts = self._all(wide)
        return None if self.rank else [part[:, :width] for part, width in zip(parts, widths, strict=True)]

    def broadcast(self, x: torch.Tensor) -> None:
        self.group.broadcast(x, 0).wait()

    def failed(self) -> int | None:
        return None

    def _all(self, x: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(x) for _ in range(self.world_size)]
        self.group.allgather([parts], [x]).wait()
        return parts


Collectives = SharedMemory | TorchCollectives
