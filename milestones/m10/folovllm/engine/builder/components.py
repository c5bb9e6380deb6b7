"""What an engine is put together from: chosen once, from the device, the dtype and what the user asked for.

             attention                layers                          draws                  CUDA graphs
    CPU      backends/cpu.py          compiled, all in one call       torch
    CPU (*)  backends/paged_torch.py  torch                           torch
    CUDA     backends/triton.py       Triton between the products     a kernel               yes

(*) where our own kernels cannot be compiled. `enforce_eager` leaves out one call for all layers, and CUDA graphs.
The KV cache in 8 bits (kv_cache_dtype.py) and batch invariance (batch_invariance.py) change some of it.

vLLM: platforms/ (get_attn_backend_cls), model_executor/custom_op.py (dispatch_forward)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from folovllm.attention.backend import AttentionBackend, select_backend
from folovllm.attention.backends.triton import kernels_unavailable_reason
from folovllm.config import EngineConfig
from folovllm.engine.builder.batch_invariance import select_invariant_backend
from folovllm.engine.builder.kv_cache_dtype import cache_dtype, select_8_bit_backend
from folovllm.layers.compiled_ops import CompiledLinear, CompiledOps, compiled_unavailable_reason
from folovllm.layers.linear import PLAIN, LinearMethod
from folovllm.layers.moe import Experts
from folovllm.layers.ops import LayerOps
from folovllm.layers.quantization.compiled import CompiledQuantizedLinear
from folovllm.layers.quantization.cuda import check_fp8, gpu_method
from folovllm.layers.quantization.linear import QuantizedLinear, QuantizedLinears
from folovllm.model_loader.quant_scheme import QuantScheme, select_scheme
from folovllm.models.one_call import OneCallOps
from folovllm.models.registry import decoder_spec
from folovllm.worker.batch_sampler import BatchSampler


@dataclass(frozen=True)
class Components:
    backend: type[AttentionBackend]
    ops: LayerOps
    cache_dtype: torch.dtype
    sampler: Callable[..., BatchSampler]
    graphs: bool
    draws: bool
    """Whether the sampling kernel draws the tokens."""


def choose_components(config: EngineConfig, hf_config: Any, dtype: torch.dtype, device: torch.device) -> Components:
    """
    Raises:
        ValueError: what was asked for cannot run here, or not together; the text says what to do.
    """
    model_config, kv_dtype = config.model_config, cache_dtype(config, dtype)
    scheme, spec = select_scheme(model_config, getattr(hf_config, "quantization_config", None)), decoder_spec(hf_config)
    if scheme is not None:
        scheme = replace(scheme, names=spec.names)
    invariant, eager = model_config.batch_invariant, model_config.enforce_eager
    if kv_dtype != dtype:
        backend = select_8_bit_backend(config, hf_config, dtype, device)
    elif invariant:
        backend = select_invariant_backend(model_config, hf_config, dtype, device)
    else:
        backend = _named_backend(config, device)
    # Experts with codes are computed one by one, and how many rows each has must be known on the host.
    records = device.type == "cuda" and not eager and (scheme is None or spec.experts is None)
    return Components(
        backend=backend,
        ops=select_ops(dtype, device, one_by_one=eager, invariant=invariant, scheme=scheme),
        cache_dtype=kv_dtype,
        sampler=partial(BatchSampler, rows_apart=True) if invariant else BatchSampler,
        graphs=records and backend.supports_cuda_graphs,
        draws=device.type == "cuda" and kernels_unavailable_reason(device) is None,
    )


def select_ops(
    dtype: torch.dtype, device: torch.device, *, one_by_one: bool, invariant: bool, scheme: QuantScheme | None = None
) -> LayerOps:
    """What computes the layers of a model with weights of `dtype`, or quantised ones."""
    has_triton = device.type == "cuda" and kernels_unavailable_reason(device) is None

    def linear(plain: LinearMethod, method: Callable[[QuantScheme, str], QuantizedLinear]) -> LinearMethod:
        if scheme is None:
            return plain
        check_fp8(scheme, device, has_triton=has_triton, invariant=invariant)
        return QuantizedLinears(scheme, method, plain)

    if device.type == "cpu" and compiled_unavailable_reason(dtype) is None:
        ops = CompiledOps if one_by_one else OneCallOps
        return ops(dtype, linear(CompiledLinear(), CompiledQuantizedLinear))
    if has_triton:
        from folovllm.layers.kernels.matmul import TiledLinear
        from folovllm.layers.triton_ops import StackedExperts, triton_ops  # loads Triton

        experts = Experts if scheme is not None else partial(StackedExperts, invariant=invariant)
        plain = TiledLinear() if invariant else PLAIN
        return triton_ops(linear(plain, partial(gpu_method, invariant=invariant)), experts)
    return LayerOps(linear(PLAIN, QuantizedLinear))


def _named_backend(config: EngineConfig, device: torch.device) -> type[AttentionBackend]:
    model_config, block_size = config.model_config, config.cache_config.block_size
    backend = select_backend(model_config.attention_backend, device)
    longest = model_config.max_model_len or 0
    if not backend.reads_block_tables and block_size < longest:
        raise ValueError(
            f"attention_backend {backend.name!r} reads a sequence from one block: it needs a block_size of at "
            f"least max_model_len ({longest}), got {block_size}"
        )
    return backend
