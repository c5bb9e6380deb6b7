"""The CUDA device that a thread launches on: each thread has its own, and it begins as the first one.

torch looks at its tensors and launches where they are. A Triton kernel, an event and a recording go to the current
device, wherever their tensors may lie.

vLLM: v1/worker/gpu_worker.py (init_device), where a process has one device for good
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """Within this block `device` is this thread's current one; on a CPU nothing happens."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
