"""Memory: how much is free, and giving it back. vLLM: utils/mem_utils.py"""

from __future__ import annotations

import ctypes
import sys

import psutil
import torch

GIB, PIECE = 2**30, 2**26
_freed = 0


def free_memory_bytes(device: torch.device) -> int:
    """Memory that can be taken without pushing anything else out."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)  # what files have in the page cache counts as free


def release_freed_memory(freed: int = PIECE) -> None:
    """Give memory that has been freed back to the system, where the C library can (glibc's malloc_trim).

    glibc keeps freed pieces of up to 32 MB for itself. While one form of the weights is replaced by another,
    piece by piece, that would add up to a second copy. All of the heap is walked through, which takes milliseconds.
    So pieces of `freed` bytes wait until they are PIECE together.
    """
    global _freed
    _freed += freed
    if _freed >= PIECE and sys.platform == "linux":
        _freed = 0
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have no such function
        if trim is not None:
            trim(0)
