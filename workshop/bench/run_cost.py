"""What a whole run costs at least: the K and V of all decode steps, the weights of each step, the prompts' operations.

vLLM: v1/metrics/perf.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from folovllm.bench.roofline import ModelCost


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
