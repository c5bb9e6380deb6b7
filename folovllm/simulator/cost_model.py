"""How long a step takes, from what it computes.

    layers      weights                  tokens * 2 * weights
    attention   K and V of all contexts  4 * heads * head_dim * layers for each pair of query and key
    head        its weights              rows * 2 * its weights

Each part takes the longer of its bytes and its operations, and one part comes after the other.

Four numbers say what a step computes: a decode of a sequence whose context has 100 tokens, the new one included, is
(1 token, 1 sequence, 100 K/V tokens, 100 pairs). A prompt's chunk of 4 tokens behind 96 is (4, 1, 100, 394).

vLLM: v1/metrics/perf.py
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from folovllm.bench.shapes import ModelShape
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.simulator.devices import Device
from folovllm.utils.checks import check_int


class StepShape(NamedTuple):
    """What a step computes."""

    tokens: int
    seqs: int
    kv_tokens: int
    """Keys that are read: of each sequence its whole context, the step's own tokens included."""
    pairs: int
    """(query, key): a query has all keys up to its position."""

    @classmethod
    def of(cls, output: SchedulerOutput) -> StepShape:
        """Of a step as the scheduler returned it, before its sequences are advanced."""
        kv_tokens = pairs = 0
        for seq, count in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True):
            start = seq.num_computed_tokens
            kv_tokens += start + count
            pairs += count * start + count * (count + 1) // 2
        return cls(output.total_num_scheduled_tokens, len(output.scheduled_seqs), kv_tokens, pairs)


class CostModel(Protocol):
    def seconds(self, tokens: int, seqs: int, kv_tokens: int, pairs: int) -> float:
        """Of one step; the arguments are a StepShape's."""


class Roofline:
    """A named device, or several that share each layer, and a model of this shape.

    Args:
        itemsize: bytes of a weight, and of a number in the cache.
        devices: how many share each layer (tensor parallelism).
    """

    def __init__(self, device: Device, shape: ModelShape, *, itemsize: int = 2, devices: int = 1) -> None:
        check_int("tensor_parallel_size", devices, 1)
        self.device, self.shape, self.itemsize, self.devices = device, shape, itemsize, devices
        self.kv_token_bytes = shape.kv_per_token * itemsize
        self._bandwidth = bandwidth = device.bandwidth * device.bandwidth_share * devices
        flops = device.flops * device.flops_share * devices
        self._head_read = shape.head * itemsize / bandwidth
        self._kv_read = self.kv_token_bytes / bandwidth
        self._token = 2 * shape.active / flops
        self._row = 2 * shape.head / flops
        self._pair = 4 * shape.layers * shape.heads * shape.head_dim / flops
        self._sums = 2 * shape.layers + 1  # behind attention and MLP of each layer, and of the embedding
        self._token_bytes = shape.hidden * itemsize

    def seconds(self, tokens: int, seqs: int, kv_tokens: int, pairs: int) -> float:
        return (
            max(self.shape.read(tokens) * self.itemsize / self._bandwidth, tokens * self._token)
            + max(kv_tokens * self._kv_read, pairs * self._pair)
            + max(self._head_read, seqs * self._row)
            + self.device.step_overhead
            + seqs * self.device.seq_overhead
            + self._sums * self.device.all_reduce_seconds(tokens * self._token_bytes, self.devices)
        )

    def num_blocks(self, block_size: int, utilization: float = 0.9) -> int:
        """Blocks that fit beside the weights in `utilization` of the memory.

        Raises:
            ValueError: not one does.
        """
        room = self.device.memory * utilization * self.devices - self.shape.parameters * self.itemsize
        count = int(room // (block_size * self.kv_token_bytes))
        if count < 1:
            need = self.shape.parameters * self.itemsize / 1e9
            raise ValueError(
                f"device must have room for {self.shape.name}, whose weights take {need:,.0f} GB, got "
                f"{self.devices} x {self.device.name} with {utilization:.0%} of {self.device.memory / 1e9:,.0f} GB: "
                "take more of them (tensor_parallel_size) or a smaller model"
            )
        return count
