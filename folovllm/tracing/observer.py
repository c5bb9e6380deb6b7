"""What looks at an engine, and the classes that tell it: a scheduler, a prefix cache and a runner like all others.

    engine.observers   a list, which all of them share: what is in it is told of each event, in its order
    a step             step_began ─ scheduling ─ scheduled ─ launched ─ updating ─ updated ─ step_ended
    running ahead      step_began ─ scheduling N+1 ─ scheduled ─ launched ─ updating N ─ updated ─ step_ended

So the scheduler that decides and the pool that keeps blocks know nothing of being looked at. An engine at the root is
built of these classes (engine/parts.py, build.py), and without observers each of them adds a call to a step.

vLLM: v1/metrics/loggers.py (StatLoggerBase) for steps, distributed/kv_events.py for blocks
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from folovllm.config import SchedulerConfig
from folovllm.core.cached_block_pool import CachedBlockPool
from folovllm.core.draft_length import DraftLength
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.prefix_caching_manager import PrefixCachingManager
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.core.speculative_scheduler import SpeculativeScheduler
from folovllm.request import Request, Sequence, SequenceStatus


class EngineObserver:
    """Told of each event by the thread that steps the engine, within the step: it changes nothing, and is quick. A
    subclass has methods for those events that it wants to hear of."""

    # Of a step. One that fails ends by started_over(): all requests wait again, and the cache is empty.
    def step_began(self) -> None: ...
    def scheduling(self) -> None: ...  # it is about to be decided what the next step computes
    def scheduled(self, output: SchedulerOutput) -> None: ...
    def launched(self) -> None: ...  # the device has got the step that was scheduled last
    def updating(self, output: SchedulerOutput) -> None: ...  # its tokens have come, and are about to be taken in
    def updated(self, output: SchedulerOutput, token_ids: Iterable[int | None]) -> None: ...  # a token or None per row
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


class PartObserver(EngineObserver):
    """Told of a step and its parts, each as it begins: step, schedule, launch, wait, update, output; "": it is over."""

    def part_began(self, part: str) -> None: ...

    def step_began(self) -> None:
        self.part_began("step")

    def scheduling(self) -> None:
        self.part_began("schedule")

    def scheduled(self, output: SchedulerOutput) -> None:
        self.part_began("launch")

    def launched(self) -> None:
        self.part_began("wait")

    def updating(self, output: SchedulerOutput) -> None:
        self.part_began("update")

    def updated(self, output: SchedulerOutput, token_ids: Iterable[int | None]) -> None:
        self.part_began("output")

    def step_ended(self, outputs: list[Any]) -> None:
        self.part_began("")

    def started_over(self) -> None:
        self.part_began("")


Observers = list[EngineObserver]


class ObservedScheduler(SpeculativeScheduler):
    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        eos_token_ids: frozenset[int],
        observers: Observers,
        draft_length: DraftLength | None = None,
    ) -> None:
        super().__init__(config, kv, eos_token_ids, draft_length)
        self.observers = observers

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        for observer in self.observers:
            observer.arrived(request)

    def schedule(self) -> SchedulerOutput:
        for observer in self.observers:
            observer.scheduling()
        output = super().schedule()
        for observer in self.observers:
            observer.scheduled(output)
        return output

    def update_from_output(
        self, output: SchedulerOutput, token_ids: Iterable[int | None], failed: Container[str] = ()
    ) -> list[tuple[Sequence, SequenceStatus | None]]:
        for observer in self.observers:
            observer.updating(output)
        gained = super().update_from_output(output, token_ids, failed)
        for observer in self.observers:
            observer.updated(output, token_ids)
        return gained

    def fork(self, request: Request, parent: Sequence, child: Sequence) -> None:
        super().fork(request, parent, child)
        for observer in self.observers:
            observer.forked(parent, child)

    def start_over(self) -> None:
        super().start_over()
        for observer in self.observers:
            observer.started_over()

    def _preempt(self, request: Request, victims: list[Sequence], output: SchedulerOutput) -> None:
        super()._preempt(request, victims, output)
        for observer in self.observers:
            observer.preempted(victims)

    def _swap_in(self, request: Request, room: int, output: SchedulerOutput) -> int | None:
        swapped = request.get_seqs(SequenceStatus.SWAPPED)
        taken = super()._swap_in(request, room, output)
        if taken is not None:
            back = [seq for seq in swapped if seq.status is not SequenceStatus.SWAPPED]
            for observer in self.observers:
                observer.resumed(back)
        return taken

    def _end(self, seq: Sequence, status: SequenceStatus) -> None:
        super()._end(seq, status)
        for observer in self.observers:
            observer.ended(seq)


class ObservedBlockPool(CachedBlockPool):
    def __init__(self, num_blocks: int, observers: Observers) -> None:
        super().__init__(num_blocks)
        self.observers = observers

    def cache_block(self, block_id: int, *content: Any) -> bool:
        is_kept = super().cache_block(block_id, *content)
        for observer in self.observers if is_kept else ():
            observer.block_cached(block_id)
        return is_kept

    def _evict(self, block_id: int) -> None:
        was_kept = self.is_cached(block_id)
        super()._evict(block_id)
        for observer in self.observers if was_kept else ():
            observer.block_evicted(block_id)

    def reset_prefix_cache(self) -> None:
        super().reset_prefix_cache()
        for observer in self.observers:
            observer.cache_reset()


class ObservedPrefixCache(PrefixCachingManager):
    def __init__(self, num_blocks: int, block_size: int, num_swap_blocks: int = 0, *, observers: Observers) -> None:
        self.observers = observers
        super().__init__(num_blocks, block_size, num_swap_blocks)

    def clear(self) -> None:
        super().clear()
        self.pool = ObservedBlockPool(self.num_blocks, self.observers)
