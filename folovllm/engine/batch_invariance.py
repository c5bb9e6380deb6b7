"""LLM(batch_invariant=True): which parts the engine is built from, and what is refused.

    attention    one backend whose bits do not depend on company    attention/backends/paged_invariant.py
    products     slabs of row counts that agree                     layers/row_slabs.py, models/batch_invariant.py
    sampling     each row by itself                                 worker/row_sampler.py

Everything else in an engine moves numbers about and computes none: scheduling, caching, swapping, running ahead.

vLLM: VLLM_BATCH_INVARIANT, model_executor/layers/batch_invariant.py
"""

from __future__ import annotations

import torch

from folovllm.attention.backend import AttentionBackend, get_backend_class
from folovllm.attention.backends.paged_invariant import PagedInvariantBackend
from folovllm.config import ModelConfig
from folovllm.utils.checks import wrong
from folovllm.worker.model_runner import ModelRunner
from folovllm.worker.row_sampler import RowSampler

DTYPES = (torch.float32, torch.bfloat16)


def select_invariant_backend(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> type[AttentionBackend]:
    """The backend of an engine with batch_invariant=True. Its tokens are computed on a CPU, in float32 or bfloat16.

    Raises:
        ValueError: another backend, device or dtype was asked for; the text says what to do.
    """
    if device.type != "cpu":
        raise ValueError(
            f"batch_invariant=True cannot be kept on {device}: its kernels sum in an order that depends on the batch; "
            f"give device='cpu', or leave batch_invariant out"
        )
    if dtype not in DTYPES:
        raise wrong("dtype", "be 'float32' or 'bfloat16' with batch_invariant=True", str(dtype).removeprefix("torch."))
    name = config.attention_backend
    if name not in (None, PagedInvariantBackend.name):
        get_backend_class(name)  # an unknown name has its own error
        raise ValueError(
            f"attention_backend {name!r} cannot keep batch_invariant=True: how it sums depends on the batch; leave "
            f"attention_backend out, or give {PagedInvariantBackend.name!r}"
        )
    return PagedInvariantBackend


def keep_rows_apart(runner: ModelRunner, dtype: torch.dtype) -> None:
    """Let each sequence's token be sampled by itself, and have attention find its tiling before the first request.

    Raises:
        ValueError: attention has none on this CPU.
    """
    backend = runner.kv_cache.backend
    assert isinstance(backend, PagedInvariantBackend)
    backend.tiling(dtype)
    sampling = runner.sampling
    runner.sampling = RowSampler(sampling.vocab_size, sampling.eos_token_ids, sampling.device)
