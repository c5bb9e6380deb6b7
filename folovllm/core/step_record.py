"""What happened in a step, for whoever listens to the engine: one record a step.

    add_request, preemption, forks   ─▶ scheduler.record, that of the next step; None: nobody listens
    schedule()                       ─▶ its output, and what a later step would change
    the end of the step              ─▶ its tokens, and what ended by them ─▶ listener(record)

vLLM: v1/request.py (record_event, take_events), v1/metrics/loggers.py (StatLoggerBase.record)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from folovllm.core.group_tables import get_block_ids
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.request_queue import RequestLines
from folovllm.core.scheduler_output import Drafts, SchedulerOutput
from folovllm.request import Request, Sequence, SequenceStatus


@dataclass(slots=True)
class StepRecord:
    """Requests and sequences are the engine's own, and go on; what the step knew of them is copied."""

    times: list[float] = field(default_factory=list)
    """Seconds of the engine's clock: when the step began, was scheduled and launched, had its tokens, had taken them
    in, and ended. One that failed has fewer."""
    arrived: list[Request] = field(default_factory=list)
    admitted: list[tuple[Sequence, int]] = field(default_factory=list)
    """(sequence, tokens of it that a cache or a sibling had computed) of those that waited and were let in."""
    preempted: list[tuple[Sequence, SequenceStatus]] = field(default_factory=list)
    resumed: list[Sequence] = field(default_factory=list)
    branched: list[tuple[Sequence, Sequence]] = field(default_factory=list)  # (parent, child) of beams
    changed: list[Sequence] = field(default_factory=list)  # gave blocks back after the step before
    output: SchedulerOutput = field(default_factory=SchedulerOutput)
    num_computed_tokens: list[int] = field(default_factory=list)  # of output.rows, before the step
    tables: dict[Sequence, list[int]] = field(default_factory=dict)  # that are new or changed
    block_events: list[tuple[str, int]] = field(default_factory=list)  # of BlockPool
    num_free: int = 0
    num_cached: int = 0
    num_waiting: int = 0
    num_running: int = 0
    num_swapped: int = 0
    token_ids: list[int | None] | None = None  # None: the step failed, and the scheduler has started over
    drafts: Drafts = field(default_factory=dict)
    ended: list[tuple[Sequence, SequenceStatus]] = field(default_factory=list)

    def take(self, output: SchedulerOutput, kv: KVCacheManager, lines: RequestLines) -> StepRecord:
        """What has been decided. Returns the record of the step after it."""
        rows, self.output = output.rows, output
        self.num_computed_tokens = [seq.num_computed_tokens for seq in rows]
        changed = [*output.grown_seqs, *(seq for seq, _ in self.admitted), *self.resumed, *self.changed]
        changed += [child for _, child in (*self.branched, *output.forks)]
        for seq in rows if kv.groups.have_windows else changed:  # windows give blocks back without a word
            if seq.status is SequenceStatus.RUNNING:
                self.tables[seq] = list(get_block_ids(seq))
        self.num_free, self.num_cached = kv.pool.num_free, kv.pool.num_cached
        self.block_events, kv.pool.events = kv.pool.events or [], []
        self.num_waiting, self.num_running = len(lines.waiting), len(lines.running)
        self.num_swapped = len(lines.swapped)
        return StepRecord()


Listener = Callable[[StepRecord], object]
"""Called by the thread that steps the engine, at the end of a step: it changes nothing, and is quick."""
