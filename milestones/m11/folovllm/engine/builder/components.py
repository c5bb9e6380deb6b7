"""What an engine is put together from, chosen once. The device and the dtype decide where a field is left open.

    component       by which fields                                       from
    attention       attention_backend, kv_cache_dtype, batch_invariant    attention/backends/
    layers          enforce_eager, quantization, batch_invariant          torch, compiled or Triton, in one call or many
    draws           (device)                                              torch, a kernel
    CUDA graphs     enforce_eager, the attention backend                  none, decodes, also prompts and drafts
    steps           async_scheduling                                      one after the other, running ahead
    draft tokens    speculative_config                                    n-grams, a table of them, a draft model

The last two are chosen in engine_core.py and proposer.py. A kernel that fails its check gives way to torch. On a Mac's
GPU torch computes everything, and the CPU draws.

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
from folovllm.layers.ops import LayerOps
from folovllm.layers.quantization.compiled import CompiledQuantizedLinear
from folovllm.layers.quantization.cuda import gpu_method, rounds_inputs
from folovllm.layers.quantization.linear import DequantizedLinear, QuantizedLinear, QuantizedLinears
from folovllm.model_loader.quant_scheme import QuantScheme, select_scheme
from folovllm.models.decoder import DecoderSpec
from folovllm.models.one_call import OneCallOps
from folovllm.models.registry import ModelSpec
from folovllm.models.transformers_model import TransformersSpec
from folovllm.speculative_config import HEADS
from folovllm.worker.batch_sampler import BatchSampler
from folovllm.worker.model_runner import ModelRunner


@dataclass(frozen=True)
class Components:
    backend: type[AttentionBackend]
    ops: LayerOps
    cache_dtype: torch.dtype
    sampler: Callable[..., BatchSampler]
    runner: Callable[..., ModelRunner]
    graphs: bool
    draws: bool
    """Whether the sampling kernel draws the tokens."""


def choose_components(
    config: EngineConfig, hf_config: Any, dtype: torch.dtype, device: torch.device, spec: ModelSpec
) -> Components:
    """spec: of the model, without windows that never cut.

    Raises:
        ValueError: what was asked for cannot run here, or not together; the text says what to do.
    """
    model_config, kv_dtype = config.model_config, cache_dtype(config, dtype)
    scheme = select_scheme(model_config, getattr(hf_config, "quantization_config", None))
    if scheme is not None and isinstance(spec, DecoderSpec):
        scheme = replace(scheme, names=spec.names)
    invariant, eager = model_config.batch_invariant, model_config.enforce_eager
    if device.type == "mps":
        _refuse_on_mps(config, spec, quantised=scheme is not None)
    if isinstance(spec, TransformersSpec):
        _refuse_what_our_layers_do(config, quantised=scheme is not None)
        eager = True  # transformers' layers run one by one
    if kv_dtype != dtype:
        backend = select_8_bit_backend(config, spec, dtype, device)
    elif invariant:
        backend = select_invariant_backend(model_config, spec, dtype, device)
    else:
        backend = _named_backend(config, device, extras=spec.has_extras)
    drafts = config.speculative_config is not None
    return Components(
        backend=backend,
        ops=select_ops(dtype, device, one_by_one=eager, invariant=invariant, scheme=scheme, drafts=drafts),
        cache_dtype=kv_dtype,
        sampler=partial(BatchSampler, rows_apart=True) if invariant else BatchSampler,
        runner=ModelRunner,
        graphs=device.type == "cuda" and not eager and backend.supports_cuda_graphs,
        draws=device.type == "cuda" and kernels_unavailable_reason(device) is None,
    )


def select_ops(
    dtype: torch.dtype, device: torch.device, *, one_by_one: bool, invariant: bool, scheme: QuantScheme | None = None,
    drafts: bool = False,
) -> LayerOps:  # fmt: skip
    """What computes the layers of a model with weights of `dtype`, or quantised ones. drafts: it verifies some."""
    has_triton = device.type == "cuda" and kernels_unavailable_reason(device) is None

    def linear(plain: LinearMethod, method: Callable[[QuantScheme, str], QuantizedLinear]) -> LinearMethod:
        if scheme is None:
            return plain
        kept = scheme
        if kept.of_numbers and not has_triton:
            method = partial(DequantizedLinear, plain=plain)
        elif kept.type == "float" and not has_triton:
            raise ValueError(
                f"quantization 'fp8' cannot be computed on {device}: it needs Triton and a GPU; give 'w8a8' or 'w4a16'"
            )
        elif kept.type == "float" and not rounds_inputs(dtype, device, invariant=invariant):
            kept = replace(kept, activation_bits=None)
        return QuantizedLinears(kept, method, plain)

    if device.type == "cpu" and compiled_unavailable_reason(dtype) is None:
        ops = CompiledOps if one_by_one else OneCallOps
        return ops(dtype, linear(CompiledLinear(), CompiledQuantizedLinear))
    if has_triton:
        from folovllm.layers.few_rows import FewRowsOps, few_rows, takes_few_rows
        from folovllm.layers.kernels.matmul import TiledLinear
        from folovllm.layers.triton_ops import StackedExperts, triton_ops  # loads Triton

        plain = TiledLinear() if invariant else PLAIN
        method = partial(gpu_method, invariant=invariant, plain=plain)
        experts = partial(StackedExperts, invariant=invariant)
        fused = triton_ops(linear(plain, method), experts, fuses_decode=not drafts)
        if not invariant and (scheme is not None or takes_few_rows(dtype, device)):
            return FewRowsOps(**vars(fused), few_rows=few_rows if scheme is None else None)
        return fused
    return LayerOps(linear(PLAIN, QuantizedLinear))


def _what_our_layers_do(config: EngineConfig, *, quantised: bool) -> dict[str, bool]:
    """By field: whether it is asked for."""
    ranks, asked = config.parallel_config.tensor_parallel_size, config.model_config.quantization
    method = None if config.speculative_config is None else config.speculative_config.method
    return {
        "batch_invariant=True": config.model_config.batch_invariant,
        "a quantised checkpoint" if asked is None else f"quantization={asked!r}": quantised,
        f"tensor_parallel_size={ranks}": ranks > 1,
        f"speculative_config's {method!r}": method in HEADS,
    }


def _refuse_on_mps(config: EngineConfig, spec: ModelSpec, *, quantised: bool) -> None:
    """There torch computes a model as its checkpoint has it, and no more."""
    kv_dtype, speculative = config.cache_config.kv_cache_dtype, config.speculative_config
    asked = _what_our_layers_do(config, quantised=quantised) | {
        f"kv_cache_dtype={kv_dtype!r}": kv_dtype != "auto",
        "speculative_config's 'draft_model'": speculative is not None and speculative.method == "draft_model",
        "a model of transformers' layers": isinstance(spec, TransformersSpec),
    }
    if name := next((name for name, is_asked in asked.items() if is_asked), None):
        raise ValueError(f"{name} cannot be computed with device='mps'; do without, or give device='cpu'")


def _refuse_what_our_layers_do(config: EngineConfig, *, quantised: bool) -> None:
    asked = _what_our_layers_do(config, quantised=quantised)
    if name := next((name for name, is_asked in asked.items() if is_asked), None):
        raise ValueError(
            f"{name} needs our own layers, and this model is computed by transformers' (model_impl 'transformers'); "
            f"do without, or take a model that model_impl='folovllm' knows"
        )


def _named_backend(config: EngineConfig, device: torch.device, *, extras: bool) -> type[AttentionBackend]:
    model_config, block_size = config.model_config, config.cache_config.block_size
    backend = select_backend(model_config.attention_backend, device, extras=extras)
    longest = model_config.max_model_len or 0
    if not backend.reads_block_tables and block_size < longest:
        raise ValueError(
            f"attention_backend {backend.name!r} reads a sequence from one block: it needs a block_size of at "
            f"least max_model_len ({longest}), got {block_size}"
        )
    return backend
