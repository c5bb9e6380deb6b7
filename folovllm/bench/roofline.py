"""The floor under a run: bytes that must move, operations that must be done, and how fast this machine does either.

    a decode step of B sequences              moves                              computes
      every weight, once for all of them      weight_bytes                       B * 2 per weight of a matmul
      the K and V of every token in context   sum(contexts) * kv_token_bytes     sum(contexts) * 4 * heads * head_dim
                                                                                 in each layer: q·k and p·v

    floor = max(bytes / bandwidth, operations / matmul rate)

A step that moves and computes at the same time can be as fast as the slower of the two, and no faster.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from folovllm.bench.workload import bytes_per_decode_step, empty_model
from folovllm.engine.llm_engine import LLMEngine
from folovllm.model_loader import load_hf_config

PROBE_BYTES = 512 * 2**20  # far more than any cache holds
CACHE_BYTES = 256 * 2**20
MATMUL_SIZE = {"cpu": 1024, "cuda": 8192}
PROBE_REPEATS = {"cpu": 1, "cuda": 20}  # in a row, so that starting and waiting are a small part


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


def exceeds_caches(cost: ModelCost, device: torch.device) -> bool:
    """Whether a share of the memory's bandwidth says something: smaller weights may stay in a CPU's caches."""
    return device.type != "cpu" or cost.weight_bytes >= CACHE_BYTES


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
class Probe:
    """How fast this machine reads, copies and multiplies; measured between the rounds, medians."""

    device: torch.device
    dtype: torch.dtype
    read: list[float] = field(default_factory=list)
    copy: list[float] = field(default_factory=list)
    matmul: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        kind = self.device.type
        self._source = torch.ones(PROBE_BYTES // 4, device=self.device)
        self._target = torch.empty_like(self._source)
        size = MATMUL_SIZE[kind]
        # Random: a GPU that multiplies ones takes less power, and runs faster than it does at work.
        self._a, self._b = (torch.randn(size, size, device=self.device, dtype=self.dtype) for _ in range(2))
        self._c = torch.empty_like(self._a)

    def measure(self, *, warm_up: bool = False) -> None:
        read, copy = self._source.nbytes, 2 * self._source.nbytes
        flops = 2 * self._a.shape[0] ** 3
        with torch.inference_mode():
            found = (
                read / self._seconds(lambda: self._source.sum()),
                copy / self._seconds(lambda: self._target.copy_(self._source)),
                flops / self._seconds(lambda: torch.mm(self._a, self._b, out=self._c)),
            )
        if not warm_up:
            for samples, rate in zip((self.read, self.copy, self.matmul), found, strict=True):
                samples.append(rate)

    def _seconds(self, call: Callable[[], object]) -> float:
        repeats = PROBE_REPEATS[self.device.type]
        self._wait()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        self._wait()
        return (time.perf_counter() - start) / repeats

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

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
