"""Memory in huge pages, and such memory for the large results of a prompt step, kept and handed out again.

A product over 1,024 tokens writes 8 to 25 MB, which are dropped a moment later. From the C library the next product
would get fresh pages, with thousands of page faults in a layer. Here the memory stays, in huge pages.

    empty() ─▶ tensor, views of it ── the last one is dropped ─▶ free ─▶ empty()
       └── none is free and large enough: new memory, in the place of the largest free one

So there are as many pieces as results were in use at a time, and nothing is handed out that is still held.

vLLM: none; its documentation advises another allocator (LD_PRELOAD) for its CPU backend
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import weakref
from collections.abc import Sequence

import torch

HUGE_PAGE = 2 << 20  # bytes, on x86-64


def empty_in_huge_pages(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised CPU tensor in pages of 2 MiB, where the system gives them on request (Linux's
    transparent_hugepage, `madvise` or `always`); else as torch.empty() makes it.

    For what is large and stays: weights and the KV cache. With 4 KiB pages a core looks up one address for each 4 KiB
    it reads, its prefetching stops at each page's end, and new memory is 512 times as many page faults.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(tuple(shape), dtype=dtype)
    # Fresh memory, not the C library's: what it has kept of freed pieces is in small pages already.
    memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages: the memory is there all the same
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)  # keeps `memory` as long as there is a view of it
    start = -whole.data_ptr() % HUGE_PAGE
    return whole[start : start + size].view(dtype).view(tuple(shape))


class RecycledMemory:
    """Any number of threads may ask, and drop: each change of `_free` is one operation of its dictionary."""

    def __init__(self) -> None:
        self._free: dict[int, torch.Tensor] = {}  # by address

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised CPU tensor. Less than a huge page is left to torch."""
        size = math.prod(shape) * dtype.itemsize
        if size < HUGE_PAGE:
            return torch.empty(tuple(shape), dtype=dtype)
        memory = self._take(size)
        # The result's storage holds this object, and so does every view of it: when it goes, none is left.
        lease = (ctypes.c_char * size).from_address(memory.data_ptr())
        weakref.finalize(lease, self._free.__setitem__, memory.data_ptr(), memory).atexit = False
        return torch.frombuffer(lease, dtype=dtype).view(tuple(shape))

    def _take(self, size: int) -> torch.Tensor:
        """The smallest free piece that is large enough, or a new one."""
        pieces = sorted(self._free.values(), key=len)  # a copy: what is dropped meanwhile is free the next time
        for memory in pieces:
            if len(memory) >= size and self._free.pop(memory.data_ptr(), None) is not None:  # no other thread has it
                return memory
        if pieces:
            self._free.pop(pieces[-1].data_ptr(), None)
        return empty_in_huge_pages((size,), torch.uint8)


RESULTS = RecycledMemory()
"""Of all models in this process."""
