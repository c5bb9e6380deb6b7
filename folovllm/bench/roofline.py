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
from dataclasses import dataclass, field
from typing import Any

import torch

from folovllm.bench.probe import Probe
from folovllm.bench.workload import bytes_per_decode_step, empty_model
from folovllm.engine.llm_engine import LLMEngine
from folovllm.hf_config import load_hf_config
from folovllm.layers.linear import Linear
from folovllm.models.fused_compiled import CompiledLinear, can_multiply


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
        heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        model = empty_model(config, dtype)
        matrices = sum(weight.numel() for name, weight in model.named_parameters() if weight.dim() == 2)
        embeddings = {id(layer.weight): layer.weight.numel() for layer in _embedding_layers(model)}
        head = config.vocab_size * config.hidden_size
        return cls(
            weight_bytes=bytes_per_decode_step(config, dtype),
            kv_token_bytes=2 * config.num_hidden_layers * kv_heads * head_dim * dtype.itemsize,
            body_flops=2 * (matrices - sum(embeddings.values())),
            head_flops=2 * head,
            pair_flops=4 * config.num_hidden_layers * heads * head_dim,
        )

    @classmethod
    def of_engine(cls, engine: LLMEngine) -> ModelCost:
        return cls.of(load_hf_config(engine.model_config), engine.dtype)

    def decode_step(self, contexts: Sequence[int]) -> tuple[int, int]:
        """Bytes and operations of a step in which each sequence has one query over so many tokens, its own included."""
        pairs = sum(contexts)
        num_bytes = self.weight_bytes + pairs * self.kv_token_bytes
        flops = len(contexts) * (self.body_flops + self.head_flops) + pairs * self.pair_flops
        return num_bytes, flops


def _embedding_layers(model: torch.nn.Module) -> list[torch.nn.Embedding | torch.nn.Linear]:
    """Tables that are looked up, and the head: a tied one is the same tensor."""
    layers: list[Any] = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    head = model.get_output_embeddings()  # type: ignore[operator]
    return [*layers, head]


@dataclass(frozen=True)
class RunCost:
    """What requests cost that all begin together and decode together, each to the end of its output."""

    kv_token_reads: int
    """Over all decode steps, the tokens in the context of all sequences, each step's own included."""
    kv_bytes: int
    steps: int
    weight_bytes: int
    prefill_flops: int

    @classmethod
    def of(cls, cost: ModelCost, prompts: Sequence[int], outputs: Sequence[int]) -> RunCost:
        """The first token of a request comes from its prefill, so output n takes n - 1 decode steps, over contexts of
        prompt + 1, prompt + 2, …; the prompts' own weight reads are those of one step."""
        pairs = list(zip(prompts, outputs, strict=True))
        reads = sum(prompt * (output - 1) + output * (output - 1) // 2 for prompt, output in pairs)
        causal = sum(prompt * (prompt + 1) // 2 for prompt in prompts)
        steps = max(outputs)
        return cls(
            kv_token_reads=reads,
            kv_bytes=reads * cost.kv_token_bytes,
            steps=steps,
            weight_bytes=steps * cost.weight_bytes,
            prefill_flops=sum(prompts) * cost.body_flops + len(prompts) * cost.head_flops + causal * cost.pair_flops,
        )

    def floor_seconds(self, bandwidth: float, flops_per_s: float) -> float:
        """Prefill is bound by operations and decode by bytes, and one comes after the other."""
        return (self.kv_bytes + self.weight_bytes) / bandwidth + self.prefill_flops / flops_per_s


@dataclass
class ProductProbe(Probe):
    """Multiplies as the engine's layers do, too: on a CPU their product may be the faster one, and torch's no floor."""

    product: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._multiply = layer_of(self._b)

    def measure(self, *, warm_up: bool = False) -> None:
        super().measure(warm_up=warm_up)
        with torch.inference_mode():
            seconds = self._seconds(lambda: self._multiply(self._a))
        if not warm_up:
            self.product.append(2 * self._a.shape[0] ** 3 / seconds)

    @property
    def flops_per_s(self) -> float:
        """The faster of both."""
        return max(statistics.median(self.matmul), statistics.median(self.product))


def layer_of(weight: torch.Tensor) -> Linear:
    """A layer that multiplies by `weight` as the engine's layers do here."""
    layer = Linear(weight.shape[1], weight.shape[0])
    layer.weight.data = weight
    if can_multiply(weight) is None:
        layer.__class__ = CompiledLinear
        assert isinstance(layer, CompiledLinear)  # for the type checker
        layer.prepare()
    return layer
