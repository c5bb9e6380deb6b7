"""Observers of an engine: the scheduler, the block pool and the engine call them as each event happens.

    observers          one list, which all of them have from the start: who is in it is called, in its order
    a step             step_began ─ scheduling ─ scheduled ─ launched ─ updating ─ updated ─ step_ended
    running ahead      step_began ─ scheduling N+1 ─ scheduled ─ launched ─ updating N ─ updated ─ step_ended

vLLM: v1/metrics/loggers.py (StatLoggerBase) for steps, distributed/kv_events.py for blocks
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from folovllm.core.scheduler_output import Drafts, SchedulerOutput
from folovllm.request import Request, Sequence


class EngineObserver:
    """Called by the thread that steps the engine, within the step: it changes nothing, and is quick. A subclass has
    methods for those events that it needs."""

    # Of a step. One that fails ends by started_over(): all requests wait again, and the cache is empty.
    def step_began(self) -> None: ...
    def scheduling(self) -> None: ...  # it is about to be decided what the next step computes
    def scheduled(self, output: SchedulerOutput) -> None: ...
    def launched(self) -> None: ...  # the device has got the step that was scheduled last
    def updating(self, output: SchedulerOutput) -> None: ...  # its tokens have come, and are about to be taken in
    def updated(self, output: SchedulerOutput, token_ids: Iterable[int | None], drafts: Drafts) -> None:
        ...
        # a token or None per row; what came of draft tokens, by sequence id

    def step_ended(self, outputs: list[Any]) -> None: ...  # the RequestOutputs that changed
    def started_over(self) -> None: ...

    # Of requests and sequences.
    def arrived(self, request: Request) -> None: ...
    def preempted(self, seqs: list[Sequence]) -> None: ...  # their status says whether they were swapped
    def resumed(self, seqs: list[Sequence]) -> None: ...  # that were swapped
    def forked(self, parent: Sequence, child: Sequence) -> None: ...  # of beams; siblings are in SchedulerOutput.forks
    def ended(self, seq: Sequence) -> None: ...  # its status says why; its blocks are free

    # Of blocks, by their ids.
    def block_cached(self, block_id: int) -> None: ...  # it can be found from here on
    def block_evicted(self, block_id: int) -> None: ...
    def cache_reset(self) -> None: ...  # no block can be found any more


Observers = list[EngineObserver]
Attach = Callable[[Any], object]
"""Gets an LLMEngine, whole and idle, and adds to its `observers` what is to look at it."""
