"""What the splits of a decode (folovllm/attention/splits.py) leave of a GPU's bandwidth: a model.

A program waits START seconds (for its length, its first block numbers, its first keys), and then reads. All that read
share the bandwidth, but none reads faster than two tiles under way allow. The constants are assumptions until a
GPU has said otherwise.

vLLM: none
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass

from folovllm.attention.splits import PLACES


@dataclass(frozen=True, slots=True)
class TailModel:
    """Times in seconds, amounts in bytes."""

    bandwidth: float
    """Of the device's memory, as a copy reaches it: 4.3e12 for an H200, 3.0e12 for an H100."""
    places: int = PLACES
    program_bandwidth: float = 25e9
    """A tile of 32 KB in 1.3 us: as long as a read under load takes, with the next tile under way meanwhile."""
    start: float = 2e-6

    def seconds(self, programs: Iterable[float]) -> float:
        """How long programs that read these amounts take; they start in this order."""
        coming = iter(programs)
        starting = [(self.start, amount) for _, amount in zip(range(self.places), coming, strict=False)]
        heapq.heapify(starting)
        reading: list[float] = []  # what every program must have read, all in all, when this one ends
        now = read = 0.0
        while starting or reading:
            rate = min(self.program_bandwidth, self.bandwidth / len(reading)) if reading else 0.0
            end = now + (reading[0] - read) / rate if reading else math.inf
            if starting and starting[0][0] <= end:
                at, amount = heapq.heappop(starting)
                read += (at - now) * rate
                now = at
                heapq.heappush(reading, read + amount)
                continue
            now, read = end, heapq.heappop(reading)
            if (following := next(coming, None)) is not None:
                heapq.heappush(starting, (now + self.start, following))
        return now


def list_programs(
    seq_lens: Iterable[int], num_kv_heads: int, splits: int, token_bytes: int, block_n: int = 64,
    result_bytes: int = 1032,
) -> list[int]:  # fmt: skip
    """Bytes that each program of a decode reads and writes, in the order in which they start."""
    programs = []
    for seq_len in seq_lens:
        per_split = -(-seq_len // (splits * block_n)) * block_n  # whole tiles, as the kernel takes them
        for first in range(0, seq_len, per_split):
            tokens = min(per_split, seq_len - first)
            programs += [tokens * token_bytes + (splits > 1) * result_bytes] * num_kv_heads
    return programs
