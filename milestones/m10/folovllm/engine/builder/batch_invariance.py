"""LLM(batch_invariant=True): which components the engine is built from, and what is refused.

                 CPU                       CUDA
    attention    backends/invariant.py     backends/invariant.py       one way for every query
    products     layers/compiled_ops.py    layers/kernels/matmul.py    our own as they are; fixed tiles
    the rest     layers/compiled_ops.py    layers/triton_ops.py        a row is computed by itself
    sampling     sample/groups.py          the same                    each row in a group of its own

On a CPU this needs the compiled kernels, for each number of theirs is summed in one order. torch's operators choose
theirs by the number of rows.

Everything else in an engine moves numbers about and computes none: scheduling, caching, swapping, running ahead.

vLLM: VLLM_BATCH_INVARIANT, model_executor/determinism/batch_invariant.py
"""

from __future__ import annotations

from typing import Any

import torch

from folovllm.attention.backend import AttentionBackend, get_backend_class
from folovllm.attention.backends.cpu import HEAD_SIZE_STEP
from folovllm.attention.backends.invariant import CPUInvariantBackend, TritonInvariantBackend
from folovllm.config import ModelConfig
from folovllm.models.registry import decoder_spec
from folovllm.utils.checks import wrong

DTYPES = (torch.float32, torch.bfloat16)


def select_invariant_backend(
    config: ModelConfig, hf_config: Any, dtype: torch.dtype, device: torch.device
) -> type[AttentionBackend]:
    """The backend of an engine with batch_invariant=True. On a CPU its tokens are computed in float32 or bfloat16.

    Raises:
        ValueError: another backend, device or dtype was asked for, or a CPU has no compiled kernels; the text says what
            to do.
    """
    backend = CPUInvariantBackend if device.type == "cpu" else TritonInvariantBackend
    if (reason := backend.unavailable_reason(device)) is not None:
        if device.type == "cpu":
            raise ValueError(
                f"batch_invariant=True needs the compiled CPU kernels, which cannot run here: {reason}; install a C++ "
                f"compiler (apt-get install g++, or name one in CXX) and leave FOLOVLLM_CPU_KERNELS unset, or leave "
                f"batch_invariant out"
            )
        raise ValueError(
            f"batch_invariant=True cannot be kept on {device}: its attention {reason}; give device='cpu', or leave "
            f"batch_invariant out"
        )
    if dtype not in DTYPES:
        raise wrong("dtype", "be 'float32' or 'bfloat16' with batch_invariant=True", str(dtype).removeprefix("torch."))
    head_size = decoder_spec(hf_config).head_size
    if device.type == "cpu" and head_size % HEAD_SIZE_STEP:
        raise ValueError(
            f"batch_invariant=True cannot be kept with heads of {head_size} on a CPU: its attention reads heads of "
            f"multiples of {HEAD_SIZE_STEP}; leave batch_invariant out"
        )
    name = config.attention_backend
    if name is not None and name != backend.name:
        get_backend_class(name)  # an unknown name has its own error
        raise ValueError(
            f"attention_backend {name!r} cannot keep batch_invariant=True: how it sums depends on the "
            f"batch; leave attention_backend out, or give {backend.name!r}"
        )
    return backend
