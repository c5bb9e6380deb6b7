"""The scheduler with a prefix cache: who joins takes what is there of it, and what has been computed is kept.

Nothing else changes. A sequence that begins with 1,000 cached tokens is to the scheduler one that has computed 1,000
tokens already, as if it had been prefilled in chunks.

vLLM: v1/core/sched/scheduler.py
"""

from __future__ import annotations

from folovllm.config import SchedulerConfig
from folovllm.core.prefix_caching import PrefixCachingManager
from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import Request, Sequence, SequenceStatus

RUNNING = SequenceStatus.RUNNING


class CachingScheduler(Scheduler):
    """A Scheduler over a PrefixCachingManager."""

    kv: PrefixCachingManager

    def __init__(self, config: SchedulerConfig, kv: PrefixCachingManager, eos_token_ids: frozenset[int]) -> None:
        super().__init__(config, kv, eos_token_ids)
        self._changed_tables: list[Sequence] = []

    def schedule(self) -> SchedulerOutput:
        output = super().schedule()
        output.grown_seqs += [seq for seq in self._changed_tables if seq.status is RUNNING]
        self._changed_tables = []
        return output

    def _take_computed(self, request: Request, running: list[Sequence], seq: Sequence) -> bool:
        self.kv.begin(seq, request.cache_salt)
        if super()._take_computed(request, running, seq):
            return True
        if not _needs_every_logit(seq):
            self.kv.take_cached(seq)
        return False

    def _admit(self, request: Request, room: int, output: SchedulerOutput) -> int | None:
        rows = super()._admit(request, room, output)
        if rows is not None and request.num_cached_tokens is None:
            # Its first sequence has just been let in. Later ones, and those that come back, are not counted.
            request.num_cached_tokens = request.get_seqs(RUNNING)[0].num_computed_tokens
            self.kv.num_queries += len(request.prompt_token_ids)
            self.kv.num_hits += request.num_cached_tokens
        return rows

    def advance(self, output: SchedulerOutput) -> None:
        super().advance(output)
        for seq in output.scheduled_seqs:
            if seq.status is RUNNING and self.kv.cache_blocks(seq):
                self._changed_tables.append(seq)

    def finish(self, request: Request, seq: Sequence, status: SequenceStatus) -> None:
        super().finish(request, seq, status)
        self.kv.end(seq)

    def start_over(self) -> None:
        super().start_over()
        self._changed_tables = []


def _needs_every_logit(seq: Sequence) -> bool:
    """Log-probabilities of prompt tokens come from the logits of all of them, so none may be skipped."""
    wanted = seq.sampling_params.prompt_logprobs is not None and seq.index == 0
    return wanted and seq.get_output_len() == 0
