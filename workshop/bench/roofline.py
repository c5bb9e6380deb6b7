"""The floor under a run: bytes that must move, operations that must be done, and how fast this machine does either.

    a decode step of B sequences              moves                              computes
      every weight, once for all of them      weights_read(B)                    B * 2 per weight of a matmul
      (but for experts that none of them chose)
      the K and V of every token in context   sum(contexts) * kv_token_bytes     sum(contexts) * 4 * heads * head_dim
                                                                                 in each layer: q·k and p·v

    floor = max(bytes / bandwidth, operations / matmul rate)

A step that moves and computes at the same time can be as fast as the slower of the two, and no faster. The rates are
no data sheet's: the same process measures them between the rounds, with as many threads, while other programs run.

vLLM: v1/metrics/perf.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from folovllm.bench.shapes import ModelShape
from folovllm.engine.llm_engine import LLMEngine
from folovllm.layers.linear import Linear
from folovllm.layers.moe import Experts
from folovllm.layers.quantization.linear import QuantizedLinear
from folovllm.model_loader.hf_config import load_hf_config
from folovllm.utils.recycled_memory import empty_in_huge_pages
from folovllm.worker.follower import LeadingModel

PROBE_BYTES = 512 * 2**20  # more than a cache holds
# Weights smaller than this may stay in a CPU's caches, and a share of the memory's bandwidth would say nothing.
CACHE_BYTES = 256 * 2**20
MATMUL_SIZE = {"cpu": 1024, "cuda": 8192}
PROBE_REPEATS = {"cpu": 1, "cuda": 20}  # in a row, so that starting and waiting are a small part


def synchronize(device: torch.device) -> None:
    """A GPU's calls only queue the work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class ModelCost:
    """What one token costs."""

    weight_bytes: int
    """Read once in a step, however many sequences it has; experts only if a token chose them."""
    kv_token_bytes: int
    """Keys and values of one token, all layers."""
    body_flops: int
    """Of a token in every matmul but the last one: 2 for each weight that it is multiplied by."""
    head_flops: int
    """Of the last one, which makes the logits; in a prefill only the last token of a prompt has it."""
    pair_flops: int
    """Attention of one query over one key, all layers: 2 * heads * head_dim for q·k, as many for p·v."""
    expert_bytes: int = 0
    """Of the weights, those of experts, of which a token chooses this share."""
    chosen: float = 1.0

    @classmethod
    def of(cls, config: Any, dtype: torch.dtype) -> ModelCost:
        shape = ModelShape.of_config("here", config.to_dict(), quantized=True)
        return cls(
            weight_bytes=(shape.body + shape.head) * dtype.itemsize,  # an untied embedding is read a row per token
            kv_token_bytes=shape.kv_per_token * dtype.itemsize,
            body_flops=2 * shape.active,
            head_flops=2 * shape.head,
            pair_flops=4 * shape.layers * shape.heads * shape.head_dim,
            expert_bytes=(shape.body - shape.read(0)) * dtype.itemsize,
            chosen=shape.top_k / shape.num_experts if shape.num_experts else 1.0,
        )

    @classmethod
    def of_engine(cls, engine: LLMEngine) -> ModelCost:
        cost, cache = cls.of(load_hf_config(engine.model_config), engine.dtype), engine.core.cache_size
        if engine.config.cache_config.kv_cache_dtype != "auto":
            cost = replace(cost, kv_token_bytes=cache.block_bytes // cache.block_size)
        layers = linears(engine)
        if any(isinstance(layer.method, QuantizedLinear) for layer in layers):  # codes and scales, as they are kept
            of_experts = [module for module in modules(engine) if isinstance(module, Experts)]
            kept = sum(weight.nbytes for experts in of_experts for weight in experts.parameters())
            return replace(cost, weight_bytes=sum(layer.weight.nbytes for layer in layers), expert_bytes=kept)
        return cost

    def weights_read(self, num_tokens: int) -> int:
        """Bytes of the weights that a step of so many tokens reads, if routers choose at random."""
        return self.weight_bytes - round(self.expert_bytes * (1 - self.chosen) ** num_tokens)

    def decode_step(self, contexts: Sequence[int]) -> tuple[int, int]:
        """Bytes and operations of a step in which each sequence has one query over so many tokens, itself included."""
        pairs = sum(contexts)
        num_bytes = self.weights_read(len(contexts)) + pairs * self.kv_token_bytes
        flops = len(contexts) * (self.body_flops + self.head_flops) + pairs * self.pair_flops
        return num_bytes, flops


def modules(engine: LLMEngine) -> Iterator[nn.Module]:
    """Of this rank's part of the model."""
    model = engine.runner.model
    return (model.model if isinstance(model, LeadingModel) else model).modules()


def linears(engine: LLMEngine) -> list[Linear]:
    return [module for module in modules(engine) if isinstance(module, Linear)]


def exceeds_caches(weight_bytes: int, device: torch.device) -> bool:
    """Whether a share of the memory's bandwidth says something."""
    return device.type != "cpu" or weight_bytes >= CACHE_BYTES


class Probe:
    """How fast this machine reads, copies and multiplies; measured between the rounds, medians.

    layer: multiplies by it, too. On a CPU its product may be the faster one, and torch's no floor.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, layer: Linear | None = None) -> None:
        self.device, self.dtype, self._layer = device, dtype, layer
        self.read: list[float] = []
        self.copy: list[float] = []
        self.matmul: list[float] = []
        self._source, self._target = (self._large().fill_(1) for _ in range(2))
        size = MATMUL_SIZE[device.type]
        # Random: a GPU that multiplies ones takes less power, and runs faster than it does at work.
        self._a, self._b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        self._c = torch.empty_like(self._a)
        self._rows = None if layer is None else torch.randn(size, layer.in_features, device=device, dtype=dtype)

    def _large(self) -> torch.Tensor:
        """On a CPU in huge pages, as packed weights are."""
        if self.device.type == "cpu":
            return empty_in_huge_pages((PROBE_BYTES // 4,), torch.float32)
        return torch.empty(PROBE_BYTES // 4, device=self.device)

    @torch.inference_mode()
    def measure(self, *, warm_up: bool = False) -> None:
        num_bytes = self._source.nbytes
        # A dot product reads faster than a sum, by a tenth.
        read = num_bytes / self._seconds(lambda: torch.dot(self._source, self._source))
        copy = 2 * num_bytes / self._seconds(lambda: self._target.copy_(self._source))
        matmul = 2 * len(self._a) ** 3 / self._seconds(lambda: torch.mm(self._a, self._b, out=self._c))
        if self._layer is not None and self._rows is not None:
            layer, rows = self._layer, self._rows
            flops = 2 * rows.numel() * layer.out_features
            matmul = max(matmul, flops / self._seconds(lambda: layer(rows)))
        if not warm_up:
            self.read.append(read)
            self.copy.append(copy)
            self.matmul.append(matmul)

    def _seconds(self, call: Callable[[], object]) -> float:
        repeats = PROBE_REPEATS[self.device.type]
        synchronize(self.device)
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        synchronize(self.device)
        return (time.perf_counter() - start) / repeats

    @property
    def bandwidth(self) -> float:
        """Bytes/s: the faster of reading and copying, so that the floor is not made easy."""
        return max(statistics.median(self.read), statistics.median(self.copy))

    @property
    def flops_per_s(self) -> float:
        return statistics.median(self.matmul)

    def describe(self) -> str:
        return (
            f"Measured between the rounds: reading {statistics.median(self.read) / 1e9:,.1f} GB/s, copying "
            f"{statistics.median(self.copy) / 1e9:,.1f} GB/s (bytes read and written), matmul "
            f"{self.flops_per_s / 1e12:,.3f} TFLOP/s in {str(self.dtype).removeprefix('torch.')}."
        )
