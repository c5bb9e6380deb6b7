"""LLM(batch_invariant=True): which parts the engine is built from, and what is refused.

                 CPU                              CUDA
    attention    backends/cpu_invariant.py        backends/triton_invariant.py     one backend, without company in it
    products     models/batch_invariant.py        models/batch_invariant_cuda.py   our own as they are; fixed tiles
    sampling     worker/row_sampler.py            the same                         each row by itself

On a CPU this needs the compiled kernels, for each number of theirs is summed in one order. torch's operators choose
theirs by the number of rows.

Everything else in an engine moves numbers about and computes none: scheduling, caching, swapping, running ahead.

vLLM: VLLM_BATCH_INVARIANT, model_executor/determinism/batch_invariant.py
"""

from __future__ import annotations

from typing import Any

import torch

from folovllm.attention.backend import AttentionBackend, get_backend_class
from folovllm.attention.backends.cpu_invariant import CPUInvariantBackend
from folovllm.attention.backends.triton_invariant import TritonInvariantBackend
from folovllm.attention.kernels.cpu import HEAD_SIZE_STEP
from folovllm.config import ModelConfig
from folovllm.models.batch_invariant import require_rows_apart
from folovllm.models.decoder import DecoderForCausalLM, DecoderSpec
from folovllm.utils.checks import wrong
from folovllm.worker.model_runner import ModelRunner
from folovllm.worker.row_sampler import RowSampler

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
    head_size = DecoderSpec.from_config(hf_config).head_size
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


def keep_bits(model: DecoderForCausalLM, device: torch.device) -> None:
    """Let each row of the model's results be the same in any company.

    Raises:
        ValueError: a part of the model cannot; by name.
    """
    if device.type == "cuda":
        from folovllm.models.batch_invariant_cuda import make_batch_invariant_cuda  # loads Triton

        make_batch_invariant_cuda(model)
    else:
        require_rows_apart(model)


def keep_rows_apart(runner: ModelRunner) -> None:
    """Let each sequence's token be sampled by itself."""
    sampling = runner.sampling
    runner.sampling = RowSampler(sampling.vocab_size, sampling.eos_token_ids, sampling.device)
