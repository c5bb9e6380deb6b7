"""LLM(batch_invariant=True): which parts the engine is built from, and what is refused.

                 CPU                              CUDA
    attention    backends/cpu_invariant.py        backends/triton_invariant.py     one backend, without company in it
                 backends/paged_invariant.py                                       where our own kernels cannot run
    products     models/batch_invariant.py        models/batch_invariant_cuda.py   slabs of rows that agree; fixed tiles
    sampling     worker/row_sampler.py            the same                         each row by itself

Everything else in an engine moves numbers about and computes none: scheduling, caching, swapping, running ahead.

vLLM: VLLM_BATCH_INVARIANT, model_executor/determinism/batch_invariant.py
"""

from __future__ import annotations

from typing import Any

import torch

from folovllm.attention.backend import AttentionBackend, get_backend_class
from folovllm.attention.backends.cpu_invariant import CPUInvariantBackend
from folovllm.attention.backends.paged_invariant import PagedInvariantBackend
from folovllm.attention.backends.triton_invariant import TritonInvariantBackend
from folovllm.attention.kernels.cpu import HEAD_SIZE_STEP
from folovllm.config import ModelConfig
from folovllm.models.batch_invariant import make_batch_invariant
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
        ValueError: another backend, device or dtype was asked for; the text says what to do.
    """
    candidates: list[type[AttentionBackend]]
    if device.type == "cpu":
        own = _own_kernels_cannot(device, hf_config)
        candidates = [PagedInvariantBackend] if own else [CPUInvariantBackend, PagedInvariantBackend]
    else:
        own, candidates = "they are for CPUs", [TritonInvariantBackend]
    if (reason := candidates[-1].unavailable_reason(device)) is not None:
        raise ValueError(
            f"batch_invariant=True cannot be kept on {device}: its attention {reason}; give device='cpu', or leave "
            f"batch_invariant out"
        )
    if dtype not in DTYPES:
        raise wrong("dtype", "be 'float32' or 'bfloat16' with batch_invariant=True", str(dtype).removeprefix("torch."))
    name = config.attention_backend
    if found := [backend for backend in candidates if name in (None, backend.name)]:
        return found[0]
    why = "how it sums depends on the batch"
    if name == CPUInvariantBackend.name:
        why = f"its kernels cannot run: {own}"
    elif name == PagedInvariantBackend.name:
        why = "it runs on CPU only"
    else:
        get_backend_class(str(name))  # an unknown name has its own error
    raise ValueError(
        f"attention_backend {name!r} cannot keep batch_invariant=True: {why}; leave attention_backend out, or give "
        f"{' or '.join(repr(backend.name) for backend in candidates)}"
    )


def _own_kernels_cannot(device: torch.device, hf_config: Any) -> str | None:
    """Why CPUInvariantBackend cannot read this model's heads here; None if it can."""
    head_size = DecoderSpec.from_config(hf_config).head_size
    if not CPUInvariantBackend.takes(head_size):
        return f"they read heads of multiples of {HEAD_SIZE_STEP}, not of {head_size}"
    return CPUInvariantBackend.unavailable_reason(device)


def keep_bits(model: DecoderForCausalLM, device: torch.device) -> None:
    """Let each row of the model's results be the same in any company.

    Raises:
        ValueError: a part of the model cannot; by name.
    """
    if device.type == "cuda":
        from folovllm.models.batch_invariant_cuda import make_batch_invariant_cuda  # loads Triton

        make_batch_invariant_cuda(model)
    else:
        make_batch_invariant(model)


def keep_rows_apart(runner: ModelRunner, dtype: torch.dtype) -> None:
    """Let each sequence's token be sampled by itself, and have attention find its tiling before the first request.

    Raises:
        ValueError: attention has none on this CPU.
    """
    backend = runner.kv_cache.backend
    if isinstance(backend, PagedInvariantBackend):
        backend.tiling(dtype)
    sampling = runner.sampling
    runner.sampling = RowSampler(sampling.vocab_size, sampling.eos_token_ids, sampling.device)
