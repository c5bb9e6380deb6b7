"""Memory for weights in few bits, side by side in huge pages.

A small one has less than a huge page. In pages of 4 KiB, where a core's own prefetching ends at each, reading it would
take longer than its bytes need.

    | weight | weight | weight |  ...  |     one chunk, in huge pages; what has not been written yet takes no memory

A chunk is given back when its last weight is dropped.

vLLM: none
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import weakref

import torch

from folovllm.utils.recycled_memory import HUGE_PAGE

CHUNK = 64 << 20  # bytes
LINE = 64  # bytes of a cache line, from which each weight starts


class WeightMemory:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunk: weakref.ref[mmap.mmap] | None = None
        self._used = self._size = 0

    def empty(self, size: int) -> torch.Tensor:
        """An uninitialised uint8 tensor [size] from the start of a cache line on."""
        with self._lock:
            chunk = None if self._chunk is None else self._chunk()
            if chunk is None or self._used + size > self._size:
                chunk = self._new_chunk(max(size, CHUNK))
            found = torch.frombuffer(chunk, dtype=torch.uint8, count=size, offset=self._used)  # keeps the chunk
            self._used += -(-size // LINE) * LINE
            return found

    def _new_chunk(self, size: int) -> mmap.mmap:
        self._size = -(-size // HUGE_PAGE) * HUGE_PAGE + HUGE_PAGE
        chunk = mmap.mmap(-1, self._size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without huge pages: the memory is there all the same
                chunk.madvise(mmap.MADV_HUGEPAGE)
        self._chunk = weakref.ref(chunk)
        self._used = -torch.frombuffer(chunk, dtype=torch.uint8).data_ptr() % HUGE_PAGE
        return chunk


WEIGHTS = WeightMemory()
"""Of all models in this process."""
