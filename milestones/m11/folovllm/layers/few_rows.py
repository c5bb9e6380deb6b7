"""A decoder whose layers take fewer kernels where few rows are multiplied: product, norm, SwiGLU and residual in one.

    TritonOps     norm  qkv  rotary  attention  o  norm  gate·up  silu_mul  down      4 products, 4 small ones
    here          ───qkv───  rotary  attention  o  ─────gate·up───────────  down      4 products; rotary for prompts
    with codes    qkv  rotary  attention  o sums  gate·up  down sums                  4 products, 2 small ones

The residual stream is one tensor, to which o and down add. Layers with experts, or cut between ranks, are computed as
ever, and so are steps of more rows: with many of them, reading x is what such a product waits for.

A product with codes that is split has a kernel behind it, which adds up its sums. That sees whole rows, so it adds them
to the stream and normalises it, too.

vLLM: none; torch.compile fuses some of it (compilation/passes)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from folovllm.layers.kernels.few_rows import TILES, few_rows
from folovllm.layers.linear import LinearMethod
from folovllm.layers.norm import RMSNorm
from folovllm.layers.quantization.cuda import FEW_ROWS, Fp8Linear, TritonCodesLinear
from folovllm.layers.rotary import Rotary
from folovllm.layers.triton_ops import TritonOps
from folovllm.utils.gpus import gpu_of

# All programs together read x from the L2 cache as often as there are programs. A small weight's way from memory takes
# less time than launching its kernel, so even 64 rows gain; a large one's leaves room for 16.
SMALL_BYTES, FEW = 16 << 20, 16


def takes_few_rows(dtype: torch.dtype, device: torch.device) -> bool:
    """Where it was reckoned to be worth it: on a Hopper GPU, whose kernels can ask for weights before their turn."""
    return gpu_of(device).is_nvidia(9) and dtype == torch.bfloat16


@dataclass
class FewRowsOps(TritonOps):
    few_rows: Callable[..., torch.Tensor] | None = few_rows
    """None: of layers without codes it is left out."""
    most_rows: int = field(default=0, init=False)
    """With how many it is taken; known when the weights are there."""
    has_codes: bool = field(default=False, init=False)
    """Every product does. Known then, too."""

    def process_weights_after_loading(self, model: nn.Module) -> None:
        super().process_weights_after_loading(model)
        decoder: Any = model.get_submodule("model")
        self.has_codes = all(map(_has_codes, decoder.layers))
        self.most_rows = 0 if self.few_rows is None else min(map(_most_rows, decoder.layers))
        self.most_rows = FEW_ROWS if self.has_codes else self.most_rows
        # A first prompt of so many tokens is not to wait for a compiler. Layers may have codes of several kinds.
        for layer in decoder.layers if self.has_codes else decoder.layers[:1]:
            for rows in TILES:
                if rows <= self.most_rows:
                    x = decoder.norm.weight.new_zeros(rows, len(decoder.norm.weight))
                    heads = x.new_zeros(rows, layer.self_attn.o_proj.in_features)
                    if self.has_codes:
                        self._multiply_codes(layer, heads, x, decoder.norm)
                    else:
                        self._multiply(layer.self_attn.qkv_proj, x, norm=layer.input_layernorm)
                        self._mlp(layer, self._multiply(layer.self_attn.o_proj, heads, add_to=x))

    def run_layers(
        self, layers: Iterable[Any], norm: RMSNorm, x: torch.Tensor, rotary: Rotary, metadata: Any
    ) -> torch.Tensor:
        if len(x) > self.most_rows:
            return super().run_layers(layers, norm, x, rotary, metadata)
        if self.has_codes:
            return self._run_codes(list(layers), norm, x, rotary, metadata)
        for layer in layers:
            qkv = self._multiply(layer.self_attn.qkv_proj, x, norm=layer.input_layernorm)
            heads = self.attend(layer.self_attn, qkv, rotary, metadata)
            x = self._mlp(layer, self._multiply(layer.self_attn.o_proj, heads, add_to=x))
        return norm(x, None)[0]

    def _run_codes(
        self, layers: list[Any], norm: RMSNorm, x: torch.Tensor, rotary: Rotary, metadata: Any
    ) -> torch.Tensor:
        x, residual = layers[0].input_layernorm(x)
        for layer, after in zip(layers, [*(layer.input_layernorm for layer in layers[1:]), norm], strict=True):
            heads = self.attend(layer.self_attn, layer.self_attn.qkv_proj(x), rotary, metadata)
            x = self._multiply_codes(layer, heads, residual, after)
        return x

    def _multiply_codes(self, layer: Any, heads: torch.Tensor, residual: torch.Tensor, after: RMSNorm) -> torch.Tensor:
        """What is behind attention; `after`: the next norm."""
        _, o, gate_up, down = _products(layer)
        x = o.method.apply(o, heads, into=(layer.post_attention_layernorm, residual))
        return down.method.apply(down, gate_up.method.apply(gate_up, x, gated=True), into=(after, residual))  # type: ignore[no-any-return]

    def _mlp(self, layer: Any, x: torch.Tensor) -> torch.Tensor:
        middle = self._multiply(layer.mlp.gate_up_proj, x, norm=layer.post_attention_layernorm, gated=True)
        return self._multiply(layer.mlp.down_proj, middle, add_to=x)

    def _multiply(self, product: Any, x: torch.Tensor, **around: Any) -> torch.Tensor:
        assert self.few_rows is not None
        return self.few_rows(x, product.weight, product.bias, **around)


def _products(layer: Any) -> list[Any]:
    """Empty where it has experts."""
    if not hasattr(layer.mlp, "gate_up_proj"):
        return []
    return [layer.self_attn.qkv_proj, layer.self_attn.o_proj, layer.mlp.gate_up_proj, layer.mlp.down_proj]


def _most_rows(layer: Any) -> int:
    """0: it has other products than a matrix as the checkpoint has it."""
    products = _products(layer)
    kinds = {type(product.method) for product in products}
    if kinds != {LinearMethod} or any(product.in_features % 8 for product in products):
        return 0
    return TILES[-1] if all(product.weight.nbytes <= SMALL_BYTES for product in products) else FEW


def _has_codes(layer: Any) -> bool:
    """Each product has."""
    products = _products(layer)
    return bool(products) and {type(product.method) for product in products} <= {TritonCodesLinear, Fp8Linear}
