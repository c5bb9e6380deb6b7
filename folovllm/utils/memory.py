"""Memory: how much is free, and giving it back. vLLM: utils/mem_utils.py"""

from __future__ import annotations

import ctypes
import os
import sys

import torch

GIB = 2**30


def free_memory_bytes(device: torch.device) -> int:
    """Memory that can be taken without pushing anything else out."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return _linux_available_bytes() or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _linux_available_bytes() -> int | None:
    """MemAvailable counts reclaimable page cache as free; SC_AVPHYS_PAGES would not."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def release_freed_memory() -> None:
    """Give memory that has been freed back to the system, where the C library can (glibc's malloc_trim).

    glibc keeps freed pieces of up to 32 MB for itself. While one form of the weights is replaced by another,
    piece by piece, that would add up to a second copy.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have no such function
        if trim is not None:
            trim(0)
