"""Six helpers for code outside the package, which imports them from here by these names.

vLLM: none
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

from folovllm.utils.devices import default_device

if TYPE_CHECKING:
    import torch


def generate_request_id() -> str:
    """A request id that no other call returns, in this process or another: for a caller of several engines."""
    return f"req-{uuid.uuid4().hex}"


def set_random_seed(seed: int) -> None:
    """Seed Python's, numpy's and torch's global generators, for what has none of its own (random weights, unseeded
    draws). A request's `seed` has its own generator, which no other request can advance."""
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
    """A GPU's memory in GiB; empty without a GPU.

    `allocated_gb` is what live tensors of this process take, `reserved_gb` also what torch keeps for the next ones.
    `free_gb` is what the driver has left, so the memory of other processes is missing from it.
    """
    import torch

    if not torch.cuda.is_available():
        return {}
    free, total = torch.cuda.mem_get_info(device)
    allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    sizes = {"allocated_gb": allocated, "reserved_gb": reserved, "free_gb": free, "total_gb": total}
    return {name: size / 2**30 for name, size in sizes.items()}


def move_to_device(tensors: Iterable[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """The tensors on `device`, in the same order. One that is there already is returned itself, not a copy."""
    return [tensor.to(device) for tensor in tensors]
