"""What all ranks of a group do together: add, and gather at rank 0.

    CPU, one machine          memory that all ranks have mapped, by our compiled code    csrc/group.cpp
    CPU, without a compiler   torch.distributed's gloo, over sockets
    GPU                       torch.distributed's NCCL

On a CPU a sum is made in the order of the ranks, in float32, and rounded once. So its bits are the same whichever of
the two computes it. NCCL adds in an order that depends on the size: with `in_order` the parts are gathered and added.

vLLM: distributed/device_communicators/cpu_communicator.py, pynccl.py
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import torch

from folovllm.utils.cpu_kernels import DTYPE_NAMES, INT, POINTER, function

SLOT_BYTES = 1 << 20
"""A rank's numbers of one turn. More take several turns."""
LINE = 64


class Collectives:
    """Counts the sums that were made, and this rank's bytes in them."""

    sums: int
    bytes: int
    address: int | None = None
    """Where csrc/group.cpp makes the sums: of its Group."""

    def all_reduce(self, x: torch.Tensor) -> None:
        raise NotImplementedError

    def gather(self, x: torch.Tensor, widths: Sequence[int]) -> list[torch.Tensor] | None:
        """All ranks' x [num_rows, widths[rank]] at rank 0, and None elsewhere."""
        raise NotImplementedError

    def broadcast(self, x: torch.Tensor) -> None:
        raise NotImplementedError

    def failed(self) -> int | None:
        """What kept a turn from its end: a rank that hangs; -1: one that has ended. None: nothing did."""
        return None


class _Group(ctypes.Structure):
    """What csrc/kernels.h declares, field by field in the same order."""

    _fields_ = [
        *((name, INT) for name in ("rank", "size", "slot_bytes", "timeout_ms")),
        *((name, POINTER) for name in ("memory", "sockets")),
        *((name, INT) for name in ("num_sockets", "turn", "failed", "sums", "bytes")),
    ]


def memory_bytes(world_size: int) -> int:
    """Of the memory that a group shares: a line for each rank, and two slots."""
    return world_size * (LINE + 2 * SLOT_BYTES)


class SharedMemory(Collectives):
    """Args:
    memory: memory_bytes() long, zeros at first, and the same for all ranks.
    sockets: descriptors that close when a rank's process ends.
    timeout: seconds.
    """

    def __init__(self, rank: int, world_size: int, memory: mmap.mmap, sockets: Sequence[int], timeout: int) -> None:
        self.rank, self.memory = rank, memory
        self._view = (ctypes.c_char * memory_bytes(world_size)).from_buffer(memory)
        self._sockets = (ctypes.c_int32 * len(sockets))(*sockets)
        self.state = _Group(
            rank, world_size, SLOT_BYTES, 1000 * timeout, ctypes.addressof(self._view),
            ctypes.addressof(self._sockets), len(sockets),
        )  # fmt: skip
        self.address = ctypes.addressof(self.state)

    @property
    def sums(self) -> int:  # type: ignore[override]
        return int(self.state.sums)

    @property
    def bytes(self) -> int:  # type: ignore[override]
        return int(self.state.bytes)

    def all_reduce(self, x: torch.Tensor) -> None:
        if x.dtype not in (torch.float32, torch.bfloat16):
            wide = x.float()
            self.all_reduce(wide)
            x.copy_(wide)
            return
        assert x.is_contiguous()  # what a product or an embedding has just made
        function(f"all_reduce_{DTYPE_NAMES[x.dtype]}")(self.address, x.data_ptr(), x.numel())

    def gather(self, x: torch.Tensor, widths: Sequence[int]) -> list[torch.Tensor] | None:
        x = x.contiguous()
        parts = None if self.rank else [x.new_empty(len(x), width) for width in widths]
        sizes = (INT * len(widths))(*(len(x) * width * x.itemsize for width in widths))
        outs = None if parts is None else (POINTER * len(parts))(*(part.data_ptr() for part in parts))
        function("all_gather_bytes")(self.address, x.data_ptr(), sizes, outs)
        return parts

    def failed(self) -> int | None:
        failed = int(self.state.failed)
        return None if not failed else -1 if failed > 0 else -1 - failed


class TorchCollectives(Collectives):
    """group: torch.distributed's, a ProcessGroupGloo or ProcessGroupNCCL."""

    def __init__(self, rank: int, world_size: int, group: Any, *, in_order: bool) -> None:
        self.rank, self.world_size, self.group = rank, world_size, group
        self.in_order, self.sums, self.bytes = in_order, 0, 0

    def all_reduce(self, x: torch.Tensor) -> None:
        self.sums, self.bytes = self.sums + 1, self.bytes + x.nbytes
        if not self.in_order:
            self.group.allreduce([x]).wait()
            return
        parts = [torch.empty_like(x) for _ in range(self.world_size)]
        self.group.allgather([parts], [x]).wait()
        total = parts[0].float()
        for part in parts[1:]:
            total += part
        x.copy_(total)

    def gather(self, x: torch.Tensor, widths: Sequence[int]) -> list[torch.Tensor] | None:
        widest = max(widths)  # torch.distributed gathers what is alike
        wide = x.new_zeros(len(x), widest)
        wide[:, : x.shape[1]] = x
        parts = [torch.empty_like(wide) for _ in widths]
        self.group.allgather([parts], [wide]).wait()
        return None if self.rank else [part[:, :width] for part, width in zip(parts, widths, strict=True)]

    def broadcast(self, x: torch.Tensor) -> None:
        self.group.broadcast(x, 0).wait()
