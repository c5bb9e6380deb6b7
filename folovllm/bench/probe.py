"""What the machine can do at this moment: how fast it reads, copies and multiplies, asked between the rounds.

A share of what a machine can do is worth nothing with a number from a data sheet: the same process asks it, with as
many threads, while other programs want what they want.

vLLM: none
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from folovllm.utils.recycled_memory import empty_in_huge_pages

PROBE_BYTES = 512 * 2**20  # more than a cache holds
# Weights smaller than this may stay in a CPU's caches, and a share of the memory's bandwidth would say nothing.
CACHE_BYTES = 256 * 2**20
MATMUL_SIZE = {"cpu": 1024, "cuda": 8192}
PROBE_REPEATS = {"cpu": 1, "cuda": 20}  # in a row, so that starting and waiting are a small part


def exceeds_caches(weight_bytes: int, device: torch.device) -> bool:
    """Whether a share of the memory's bandwidth says something."""
    return device.type != "cpu" or weight_bytes >= CACHE_BYTES


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
        self._source, self._target = (self._large().fill_(1) for _ in range(2))
        size = MATMUL_SIZE[kind]
        # Random: a GPU that multiplies ones takes less power, and runs faster than it does at work.
        self._a, self._b = (torch.randn(size, size, device=self.device, dtype=self.dtype) for _ in range(2))
        self._c = torch.empty_like(self._a)

    def _large(self) -> torch.Tensor:
        """On a CPU in huge pages, where packed weights lie, too."""
        if self.device.type == "cpu":
            return empty_in_huge_pages((PROBE_BYTES // 4,), torch.float32)
        return torch.empty(PROBE_BYTES // 4, device=self.device)

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
