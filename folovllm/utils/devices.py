"""What this machine can do: which device, how much memory, and whether the CPU multiplies bfloat16.

Everything that touches torch imports it inside the function, so that importing this module costs nothing.

vLLM: vllm/platforms/
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

GIB = 2**30
HUGE_PAGE = 2 << 20  # bytes, on x86-64


def default_device() -> str:
    """The device to use when none is named: the first CUDA GPU, else the CPU."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def cpu_has_bf16_units() -> bool:
    """True where the CPU multiplies bfloat16 in hardware (AMX tiles or AVX-512 BF16).

    Without such units each bfloat16 product is widened to float32 first: torch's matrix product is then about
    as fast as float32's at one row, although it reads half the bytes, and several times slower at a hundred.
    The probes are private names of torch: where a build lacks one, the answer is no, which costs speed at
    worst and never correctness.

    FOLOVLLM_CPU_BF16=yes or =no in the environment answers in the CPU's place, to try out the other kind of
    machine: dtype="auto" then chooses as it would there, and so does everything that follows from the dtype.
    Under a yes, products that the CPU has no units for come out right, only slowly.

    Raises:
        ValueError: FOLOVLLM_CPU_BF16 says something else.
    """
    forced = os.environ.get("FOLOVLLM_CPU_BF16")
    if forced:
        if forced not in ("yes", "no"):
            raise ValueError(f"FOLOVLLM_CPU_BF16 must be 'yes' or 'no', got {forced!r}; unset it to ask the CPU")
        return forced == "yes"
    import torch

    for probe in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        supported = getattr(torch.cpu, probe, None)
        if supported is not None and supported():
            return True
    return False


def total_memory_bytes(device: torch.device) -> int:
    """The device's whole memory: the GPU's own, or the machine's RAM."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory_bytes(device: torch.device) -> int:
    """Memory that can be taken without pushing anything else out."""
    import torch

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
    import ctypes
    import sys

    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have no such function
        if trim is not None:
            trim(0)


def empty_in_huge_pages(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised CPU tensor in pages of 2 MiB, where the system has them for who asks (Linux's
    transparent_hugepage, `madvise` or `always`); else as torch.empty() makes it.

    For what is large and stays: weights and the KV cache. With 4 KiB pages a core looks up one address for each 4 KiB
    it reads, its prefetching stops at each page's end, and new memory is 512 times as many page faults.
    """
    import math
    import mmap

    import torch

    size = math.prod(shape) * dtype.itemsize
    if size < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(tuple(shape), dtype=dtype)
    # Fresh memory, not the C library's: what it has kept of freed pieces lies in small pages already.
    memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages: the memory is there all the same
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)  # keeps `memory` as long as there is a view of it
    start = -whole.data_ptr() % HUGE_PAGE
    return whole[start : start + size].view(dtype).view(tuple(shape))
