"""The floor under a run: bytes that must move, operations that must be done, and how fast this machine does either.

    a decode step of B sequences              moves                              computes
      every weight, once for all of them      weight_bytes                       B * 2 per weight of a matmul
      the K and V of every token in context   sum(contexts) * kv_token_bytes     sum(contexts) * 4 * heads * head_dim
                                                                                 in each layer: q·k and p·v

    floor = max(bytes / bandwidth, operations / matmul rate)

A step that moves and computes at the same time can be as fast as the slower of the two, and no faster.

vLLM: v1/metrics/perf.py
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from folovllm.bench.probe import Probe
from folovllm.bench.shapes import ModelShape
from folovllm.engine.llm_engine import LLMEngine
from folovllm.hf_config import load_hf_config
from folovllm.layers.linear import Linear, LMHead
from folovllm.layers.quantization.linear import QuantizedLinear


@dataclass(frozen=True)
class ModelCost:
    """What one token costs."""

    weight_bytes: int
    """Read once in a step, however many sequences it has."""
    kv_token_bytes: int
    """Keys and values of one token, all layers."""
    body_flops: int
    """Of a token in every matmul but the last one: 2 for each weight."""
    head_flops: int
    """Of the last one, which makes the logits; in a prefill only the last token of a prompt has it."""
    pair_flops: int
    """Attention of one query over one key, all layers: 2 * heads * head_dim for q·k, as many for p·v."""

    @classmethod
    def of(cls, config: Any, dtype: torch.dtype) -> ModelCost:
        shape = ModelShape.of_config("here", config.to_dict(), quantized=True)
        return cls(
            weight_bytes=(shape.body + shape.head) * dtype.itemsize,  # an untied embedding is read a row per token
            kv_token_bytes=shape.kv_per_token * dtype.itemsize,
            body_flops=2 * shape.body,
            head_flops=2 * shape.head,
            pair_flops=4 * shape.layers * shape.heads * shape.head_dim,
        )

    @classmethod
    def of_engine(cls, engine: LLMEngine) -> ModelCost:
        cost = cls.of(load_hf_config(engine.model_config), engine.dtype)
        layers = [module for module in engine.runner.model.modules() if isinstance(module, Linear)]
        if any(isinstance(layer.method, QuantizedLinear) for layer in layers):  # codes and scales, as they are kept
            return replace(cost, weight_bytes=sum(layer.weight.nbytes for layer in layers))
        return cost

    def decode_step(self, contexts: Sequence[int]) -> tuple[int, int]:
        """Bytes and operations of a step in which each sequence has one query over so many tokens, its own included."""
        pairs = sum(contexts)
        num_bytes = self.weight_bytes + pairs * self.kv_token_bytes
        flops = len(contexts) * (self.body_flops + self.head_flops) + pairs * self.pair_flops
        return num_bytes, flops


class LayerProbe(Probe):
    """Multiplies by a layer of the engine, too: on a CPU its product may be the faster one, and torch's no floor."""

    def __init__(self, device: torch.device, dtype: torch.dtype, layer: Linear) -> None:
        super().__init__(device, dtype)
        self._layer = layer
        self._rows = torch.randn(len(self._a), layer.in_features, device=device, dtype=dtype)
        self.product: list[float] = []

    def measure(self, *, warm_up: bool = False) -> None:
        super().measure(warm_up=warm_up)
        with torch.inference_mode():
            seconds = self._seconds(lambda: self._layer(self._rows))
        if not warm_up:
            self.product.append(2 * self._rows.numel() * self._layer.out_features / seconds)

    @property
    def flops_per_s(self) -> float:
        """The faster of both."""
        return max(statistics.median(self.matmul), statistics.median(self.product))


def largest_layer(engine: LLMEngine) -> Linear:
    """But for the one that makes the logits."""
    layers = [module for module in engine.runner.model.modules() if isinstance(module, Linear)]
    layers = [layer for layer in layers if not isinstance(layer, LMHead)]
    return max(layers, key=lambda layer: layer.in_features * layer.out_features)
