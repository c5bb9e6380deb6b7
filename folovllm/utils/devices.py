"""What this machine can do: which device, how much memory, and whether the CPU multiplies bfloat16.

vLLM: vllm/platforms/
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from folovllm.utils.logging import init_logger

if TYPE_CHECKING:
    import torch

NVIDIA_DRIVER = Path("/dev/nvidiactl")


def default_device() -> str:
    """The device to use when none is named: the first CUDA GPU, else the CPU."""
    import torch

    with warnings.catch_warnings(record=True):  # torch's takes several lines
        if torch.cuda.is_available():
            return "cuda"
    if reason := hidden_gpu_reason():
        init_logger(__name__).warning("the CPU computes: %s", reason)
    return "cpu"


def hidden_gpu_reason() -> str | None:
    """Why torch finds no GPU where NVIDIA's driver runs; None where none does, or CUDA_VISIBLE_DEVICES hides it."""
    import torch

    if not NVIDIA_DRIVER.exists() or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    found = f"torch {torch.__version__} finds no GPU, though NVIDIA's driver runs"
    if torch.version.cuda is None:
        return f"{found}: this build of torch has no CUDA"
    return f"{found}: it may be too old for CUDA {torch.version.cuda}; nvidia-smi prints which CUDA it knows"


def cpu_has_bf16_units() -> bool:
    """True where the CPU multiplies bfloat16 in hardware (AMX tiles or AVX-512 BF16; Arm's units, if the kernels run).

    Without such units torch's product is about as fast as float32's at one row, and several times slower at a hundred.
    The probes are private names of torch: where a build lacks one, the answer is no, which costs speed at most.

    FOLOVLLM_CPU_BF16=yes or =no in the environment answers in the CPU's place, to try out the other kind of machine.
    Under a yes, products that the CPU has no units for come out right, only slowly.

    Raises:
        ValueError: FOLOVLLM_CPU_BF16 says something else.
    """
    if forced := os.environ.get("FOLOVLLM_CPU_BF16"):
        if forced not in ("yes", "no"):
            raise ValueError(f"FOLOVLLM_CPU_BF16 must be 'yes' or 'no', got {forced!r}; unset it to ask the CPU")
        return forced == "yes"
    import torch

    from folovllm.utils.cpu_kernels import cpu_features, unavailable_reason

    if "bf16" in cpu_features():  # Arm's: torch does not know them
        return unavailable_reason() is None
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


def find_device_fault(device: torch.device) -> Exception | None:
    """What the device answers to everything from now on; None: it works.

    Some errors of a CUDA device end one call only: memory that was too short may do for the next, smaller step. Others
    end the process: after a kernel has read an address that does not exist, every later call gets the same error. To
    learn which of the two it was, one call is made after a step has failed.
    """
    if device.type != "cuda":
        return None
    import torch

    try:
        torch.cuda.synchronize(device)
    except Exception as fault:
        return fault
    return None
