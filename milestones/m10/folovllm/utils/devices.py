"""What this machine can do: which device, how much memory, and whether the CPU multiplies bfloat16.

vLLM: vllm/platforms/
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


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
    import psutil
    import torch

    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(psutil.virtual_memory().total)
