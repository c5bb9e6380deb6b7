"""A decoder whose small operations between the matrix products are one Triton kernel each.

Launches of a decode layer of Qwen3, without those of attention, which depend on its backend:

                          torch                                    here
    input norm            add, norm                          2      add_rms_norm   1
    qkv                   product                            1      product        1
    norm of heads, RoPE   norm, weight, widen, roll, cos,    7      norm_rotary    1
                          sin, narrow
    K, V into the cache   copy, twice                        2
    output                product                            1      product        1
    second norm           add, norm                          2      add_rms_norm   1
    gate and up           product                            1      product        1
    SwiGLU                silu, times                        2      silu_mul       1
    down                  product                            1      product        1
                                                            19                     8

At 5 microseconds of the host's time for a launch, 28 layers are 2.7 ms of launching against 1.1, in a step whose 1.2 GB
of weights an H200 reads in 0.3 ms: without CUDA graphs, the launches are the step. A fused decode takes one less.

vLLM: its layers choose between forward_native and forward_cuda (model_executor/custom_op.py)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from folovllm.attention.backend import FusedRope
from folovllm.layers.kernels.add_rms_norm import rms_norm
from folovllm.layers.kernels.lora import add_lora
from folovllm.layers.kernels.norm_rotary import norm_rotary
from folovllm.layers.kernels.silu_mul import silu_mul
from folovllm.layers.linear import PLAIN, LinearMethod
from folovllm.layers.lora import LoRAWeights
from folovllm.layers.moe import Experts
from folovllm.layers.ops import LayerOps
from folovllm.layers.quantization.experts import StackedExperts
from folovllm.layers.rotary import Rotary
from folovllm.lora.mapping import LoRAMapping


@dataclass
class TritonOps(LayerOps):
    """K and V go into the cache with their rotation. So a hook on a layer's attention sees nothing."""

    fuses_decode: bool = True
    """False: a batch of single queries may be a sequence's drafts, which read keys that the others store."""

    def process_weights_after_loading(self, model: nn.Module) -> None:
        super().process_weights_after_loading(model)
        for module in model.modules():
            if isinstance(module, StackedExperts):
                module.stack()

    def warm_up(self, model: nn.Module) -> None:
        decoder: Any = model.get_submodule("model")
        of_kinds = {layer.self_attn.attn.backend: layer.self_attn for layer in decoder.layers}
        for backend, layer in of_kinds.items():
            if not backend.supports_fused_decode:
                continue
            q, step = backend.one_token(layer.attn.kv_cache, decoder.norm.weight.dtype)
            qkv, rotary = q.new_zeros(1, layer.qkv_proj.out_features), decoder.rotary(step.slot_mapping)
            self.attend(layer, qkv, rotary, replace(step, max_query_len=2))  # as a prompt
            for num_blocks in (1, 64, 1024):  # room for a tile of keys, for a few, and for many
                tables = step.block_tables.new_zeros(1, num_blocks)
                self.attend(layer, qkv, rotary, replace(step, block_tables=tables))

    def attend(self, layer: Any, qkv: torch.Tensor, rotary: Rotary, metadata: Any) -> torch.Tensor:
        backend, cache = layer.attn.backend, layer.attn.kv_cache
        if backend is None or not backend.stores_as_is or self.norm_rotary is not norm_rotary:
            return super().attend(layer, qkv, rotary, metadata)
        num_heads, num_kv_heads = layer.num_heads, layer.num_kv_heads
        heads = qkv.view(-1, num_heads + 2 * num_kv_heads, layer.head_size)
        metadata = metadata.of_group(layer.attn.group)
        if self.fuses_decode and metadata.max_query_len == 1 and backend.supports_fused_decode:
            weight, eps = (None, 0.0) if layer.qk_norm is None else (layer.qk_norm.weight, layer.qk_norm.eps)
            fused = FusedRope(weight, eps, *rotary, metadata.slot_mapping)
            return backend.fused_forward(heads[:, :num_heads], cache, metadata, fused).flatten(1)  # type: ignore[no-any-return]
        q, _, _ = norm_rotary(heads, layer.qk_norm, rotary, num_heads, num_kv_heads, cache, metadata.slot_mapping)
        return backend.forward(q, cache, metadata).flatten(1)  # type: ignore[no-any-return]


class TritonLoRAWeights(LoRAWeights):
    """All adapters of a step together."""

    def add(self, x: torch.Tensor, mapping: LoRAMapping, out: torch.Tensor) -> None:
        add_lora(x, self.a, self.b, *mapping.sorted_rows(len(self.a)), out)


def triton_ops(
    linear: LinearMethod = PLAIN, experts: Callable[..., Experts] = StackedExperts, *, fuses_decode: bool = True
) -> LayerOps:
    return TritonOps(linear, rms_norm, norm_rotary, silu_mul, experts=experts, fuses_decode=fuses_decode)
