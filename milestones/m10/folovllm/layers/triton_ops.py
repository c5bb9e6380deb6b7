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
of weights an H200 reads in 0.3 ms: without CUDA graphs, the launches are the step.

vLLM: its layers choose between forward_native and forward_cuda (model_executor/custom_op.py)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from folovllm.layers.kernels.add_rms_norm import rms_norm
from folovllm.layers.kernels.experts import group, grouped_mlps, route
from folovllm.layers.kernels.norm_rotary import norm_rotary
from folovllm.layers.kernels.silu_mul import silu_mul
from folovllm.layers.linear import PLAIN, LinearMethod
from folovllm.layers.moe import Experts, Routing
from folovllm.layers.norm import RMSNorm
from folovllm.layers.ops import LayerOps
from folovllm.layers.rotary import Rotary


class TritonOps(LayerOps):
    """Calls the parts of a layer itself, since K and V go into the cache with their rotation. So a hook on a whole
    layer or on its attention sees nothing, as in a CUDA graph."""

    def run_layers(
        self, layers: Iterable[Any], norm: RMSNorm, x: torch.Tensor, rotary: Rotary, metadata: Any
    ) -> torch.Tensor:
        residual = None
        for layer in layers:
            x, residual = layer.input_layernorm(x, residual)
            x = self._attend(layer.self_attn, x, rotary, metadata)
            x, residual = layer.post_attention_layernorm(x, residual)
            x = layer.mlp(x)
        return norm(x, residual)[0]

    def _attend(self, layer: Any, x: torch.Tensor, rotary: Rotary, metadata: Any) -> torch.Tensor:
        """What SelfAttention computes."""
        backend, cache = layer.attn.backend, layer.attn.kv_cache
        if backend is None or not backend.stores_as_is or self.norm_rotary is not norm_rotary:
            return layer(x, rotary, metadata)
        num_heads, num_kv_heads = layer.num_heads, layer.num_kv_heads
        heads = layer.qkv_proj(x).view(-1, num_heads + 2 * num_kv_heads, layer.head_size)
        q, _, _ = norm_rotary(heads, layer.qk_norm, rotary, num_heads, num_kv_heads, cache, metadata.slot_mapping)
        return layer.o_proj(backend.forward(q, cache, metadata).flatten(1))


class StackedExperts(Experts):
    """Of experts that are not quantised: each has its slices of two tensors, which a kernel reads whole."""

    route = staticmethod(route)

    def __init__(self, count: int, make: Callable[[int], nn.Module], *, invariant: bool = False) -> None:
        self.invariant = invariant

        def slices(number: int) -> nn.Module:
            expert: Any = make(number)
            if number == 0:
                self.gate_up, self.down = (
                    product.weight.new_empty(count, *product.weight.shape)
                    for product in (expert.gate_up_proj, expert.down_proj)
                )
            expert.gate_up_proj.weight = nn.Parameter(self.gate_up[number], requires_grad=False)
            expert.down_proj.weight = nn.Parameter(self.down[number], requires_grad=False)
            return expert  # type: ignore[no-any-return]

        super().__init__(count, slices)

    def forward(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        groups = group(routing.experts, len(self))
        return grouped_mlps(x, self.gate_up, self.down, groups, routing, invariant=self.invariant)


def triton_ops(linear: LinearMethod = PLAIN, experts: Callable[..., Experts] = StackedExperts) -> LayerOps:
    return TritonOps(linear, rms_norm, norm_rotary, silu_mul, experts=experts)
