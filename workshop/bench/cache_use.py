"""What a run did with its KV cache: prompt tokens found in it, how much of it was in use, who had to give way.

The engine counts over its life, so a run's figures are differences; the peak is looked at behind each step.

vLLM: v1/metrics/stats.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from folovllm.bench.contestant import FoloVLLM, Run
from folovllm.bench.report import Row

COLUMNS = ["kv_peak_share", "prefix_hit_rate", "preemptions"]
NOTE = (
    "kv peak share: the blocks of running sequences, at most, over all; prefix hit rate: of the prompts' tokens, those "
    "found in the cache; preemptions: sequences that gave way, in all rounds."
)


@dataclass(frozen=True)
class CacheUse:
    """Of one run. `queries` and `hits` are prompt tokens, 0 without a cache of prefixes."""

    queries: int
    hits: int
    preemptions: int
    peak_share: float


class CountingFoloVLLM(FoloVLLM):
    """One that also keeps what each of its runs did with the cache, in `uses`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.uses: list[CacheUse] = []

    def run(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> Run:
        before = self._counts()
        run = super().run(prompts, num_tokens)
        queries, hits, preemptions = (after - was for after, was in zip(self._counts(), before, strict=True))
        slots = self.engine.stats().kv_blocks_total * self.engine.scheduler.kv.block_size
        self.uses.append(CacheUse(queries, hits, preemptions, (run.kv_reserved_tokens or 0) / slots))
        return run

    def _counts(self) -> tuple[int, int, int]:
        stats = self.engine.stats()
        return stats.prefix_cache_queries, stats.prefix_cache_hits, stats.preemptions


def cells(uses: Sequence[CacheUse]) -> Row:
    """What the row of these runs says; no hit rate where nothing could be found."""
    queries = sum(use.queries for use in uses)
    return {
        "kv_peak_share": max(use.peak_share for use in uses),
        "prefix_hit_rate": sum(use.hits for use in uses) / queries if queries else None,
        "preemptions": sum(use.preemptions for use in uses),
    }
