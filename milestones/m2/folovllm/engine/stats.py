"""What the engine is doing now: how many requests run and wait, how full the cache is, how fast tokens come.

vLLM: v1/metrics/stats.py
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from folovllm.core.scheduler import Scheduler

WINDOW_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of the engine.

    `running` and `waiting` count requests, `running_seqs` sequences: the rows of the batch. `kv_tokens_used` of
    `kv_tokens_reserved` is what the running sequences fill of the cache that was set aside for them.
    """

    running: int
    waiting: int
    running_seqs: int
    kv_blocks_total: int
    kv_blocks_used: int
    kv_tokens_reserved: int
    kv_tokens_used: int
    steps: int
    prompt_tokens: int
    output_tokens: int
    tokens_per_s: float
    """Output tokens of the last seconds, per second; 0 when nothing runs."""

    @classmethod
    def of(cls, scheduler: Scheduler, tokens: TokenCounter) -> EngineStats:
        return cls(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            running_seqs=scheduler.num_running_seqs,
            kv_blocks_total=scheduler.num_slots,
            kv_blocks_used=scheduler.num_running_seqs,
            kv_tokens_reserved=scheduler.num_running_seqs * scheduler.max_model_len,
            kv_tokens_used=scheduler.num_used_tokens,
            steps=tokens.steps,
            prompt_tokens=tokens.prompt_tokens,
            output_tokens=tokens.output_tokens,
            tokens_per_s=tokens.tokens_per_s if scheduler.has_unfinished_requests() else 0.0,
        )


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
