"""What the engine is doing now: how many requests run and wait, how full the cache is, how fast tokens come.

vLLM: v1/metrics/stats.py
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from folovllm.core.scheduler import Scheduler
from folovllm.spec_decode.metrics import SpecDecodingStats

WINDOW_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of the engine.

    `running`, `waiting` and `swapped` count requests, `running_seqs` sequences: the rows of the batch. Of
    `kv_tokens_reserved` slots in blocks, running sequences fill `kv_tokens_used`; a block that several of them share is
    reserved once and used by each. `preemptions` counts sequences that had to give way. `kv_blocks_cached` can be found
    by what they hold, in use or not; of `prefix_cache_queries` prompt tokens that came, `prefix_cache_hits` were found,
    `external_prefix_cache_hits` of them in a tier behind the cache. Of `kv_offload_tiering_chunk_queries` blocks that
    were looked for in the last tier, `kv_offload_tiering_chunk_hits` were found, read and checked.
    """

    running: int
    waiting: int
    swapped: int
    running_seqs: int
    kv_blocks_total: int
    kv_blocks_used: int
    kv_blocks_shared: int
    kv_blocks_cached: int
    kv_tokens_reserved: int
    kv_tokens_used: int
    preemptions: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    steps: int
    prompt_tokens: int
    output_tokens: int
    tokens_per_s: float
    """Output tokens of the last seconds, per second; 0 when nothing runs."""
    spec_decode: SpecDecodingStats | None = None
    """None: without speculative_config."""
    external_prefix_cache_hits: int = 0
    kv_offload_tiering_chunk_queries: int = 0
    kv_offload_tiering_chunk_hits: int = 0

    @classmethod
    def of(cls, scheduler: Scheduler, tokens: TokenCounter) -> EngineStats:
        kv, pool = scheduler.kv, scheduler.kv.pool
        return cls(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            swapped=len(scheduler.swapped),
            running_seqs=scheduler.num_running_seqs,
            kv_blocks_total=pool.num_blocks,
            kv_blocks_used=pool.num_used,
            kv_blocks_shared=pool.num_shared,
            kv_blocks_cached=pool.num_cached,
            kv_tokens_reserved=pool.num_used * kv.block_size,
            kv_tokens_used=scheduler.num_used_tokens,
            preemptions=scheduler.preempter.num_recomputed + scheduler.preempter.num_swapped,
            prefix_cache_queries=kv.num_queries,
            prefix_cache_hits=kv.num_hits,
            steps=tokens.steps,
            prompt_tokens=tokens.prompt_tokens,
            output_tokens=tokens.output_tokens,
            tokens_per_s=tokens.tokens_per_s if scheduler.has_unfinished_requests() else 0.0,
            spec_decode=_spec_decoding_stats(scheduler),
            external_prefix_cache_hits=kv.num_external_hits,
            kv_offload_tiering_chunk_queries=0 if kv.offload is None else kv.offload.num_queries,
            kv_offload_tiering_chunk_hits=0 if kv.offload is None else kv.offload.num_hits,
        )

    @property
    def prefix_hit_rate(self) -> float:
        """Share of prompt tokens that did not have to be computed; 0 before any came."""
        return self.prefix_cache_hits / self.prefix_cache_queries if self.prefix_cache_queries else 0.0


def _spec_decoding_stats(scheduler: Scheduler) -> SpecDecodingStats | None:
    drafts = scheduler.drafts
    if drafts.length is None:
        return None
    kept = list(drafts.num_accepted_per_pos)
    kept += [0] * (drafts.length.most - len(kept))
    return SpecDecodingStats(drafts.num_drafts, drafts.num_draft_tokens, tuple(kept))


class TokenCounter:
    """Tokens of all steps, and the rate of the last few seconds."""

    def __init__(self) -> None:
        self.steps = self.prompt_tokens = self.output_tokens = 0
        self._recent: deque[tuple[float, int]] = deque()  # (when a step began, output tokens before it)

    def record(self, began: float, prompt_tokens: int, output_tokens: int) -> None:
        """One step; `began` in seconds of time.perf_counter()."""
        self._recent.append((began, self.output_tokens))
        self.steps += 1
        self.prompt_tokens += prompt_tokens
        self.output_tokens += output_tokens
        while began - self._recent[0][0] > WINDOW_SECONDS:
            self._recent.popleft()

    @property
    def tokens_per_s(self) -> float:
        now = time.perf_counter()
        # A copy, made in one go: AsyncLLM asks while a step may be recorded in another thread.
        recent = [entry for entry in list(self._recent) if now - entry[0] <= WINDOW_SECONDS]
        if not recent:
            return 0.0
        began, before = recent[0]
        return (self.output_tokens - before) / max(now - began, 1e-9)
