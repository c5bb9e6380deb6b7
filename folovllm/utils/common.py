"""Six helpers for code outside the package, which imports them from here by these names.

The engine itself seeds by set_random_seed(), and asks `utils/devices.py` for devices and memory. torch is imported
inside the functions, so that importing this module costs nothing.

vLLM: none
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

from folovllm.utils.devices import GIB, default_device, free_memory_bytes, total_memory_bytes

if TYPE_CHECKING:
    import torch


def generate_request_id() -> str:
    """A request id that no other call returns, in this process or another.

    An engine numbers its own requests (utils/ids.py). This is for a caller that serves several engines.
    """
    return f"req-{uuid.uuid4().hex}"


def set_random_seed(seed: int) -> None:
    """Seed Python's, numpy's and torch's global generators (torch's covers every device).

    This is for what has no generator of its own (random weights, unseeded draws). A request's `seed` does not go
    through here: it owns a generator, so that no other request can advance its state.
    """
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)  # numpy's global generator takes 32 bits
    torch.manual_seed(seed)


def is_cuda_available() -> bool:
    import torch

    return torch.cuda.is_available()


def get_device(device: str | None = None) -> torch.device:
    """The device of that name; None is the first CUDA GPU, or the CPU where there is no GPU."""
    import torch

    return torch.device(device or default_device())


def get_gpu_memory_info(device: int = 0) -> dict[str, float]:
    """A GPU's memory in GiB; empty where there is no GPU.

    `allocated_gb` is what live tensors of this process take, `reserved_gb` that and what torch keeps for the next
    ones. `free_gb` is what the driver has left, so the memory of other processes is missing from it.
    """
    import torch

    if not torch.cuda.is_available():
        return {}
    gpu = torch.device("cuda", device)
    return {
        "allocated_gb": torch.cuda.memory_allocated(gpu) / GIB,
        "reserved_gb": torch.cuda.memory_reserved(gpu) / GIB,
        "free_gb": free_memory_bytes(gpu) / GIB,
        "total_gb": total_memory_bytes(gpu) / GIB,
    }


def move_to_device(tensors: Iterable[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """The tensors on `device`, in the same order. One that is there already is returned itself, not a copy."""
    return [tensor.to(device) for tensor in tensors]
