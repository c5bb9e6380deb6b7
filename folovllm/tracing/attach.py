"""Puts a tracer around an engine: around the very methods that it calls, without its knowledge.

    engine.scheduler          add_request, schedule, update_from_output, fork, start_over
    its preempter, its cache  preempt; swap_in, forget, clear, reset_prefix_cache; cache_block, _evict of the pool
    engine.runner             execute_model
    engine.output_processor   process_outputs, the last thing of a step

A simulator has a scheduler only: `attach_scheduler` is the part that needs no more.

vLLM: none
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from folovllm import __version__
from folovllm.config import EngineConfig
from folovllm.core.cached_block_pool import CachedBlockPool
from folovllm.core.prefix_caching_manager import PrefixCachingManager
from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import Request, Sequence, SequenceStatus
from folovllm.tracing.nvtx import attach_nvtx
from folovllm.tracing.schema import VERSION, Header
from folovllm.tracing.tracer import Tracer
from folovllm.tracing.wraps import Wraps
from folovllm.tracing.writer import TraceWriter
from folovllm.utils.checks import check_bool

Clock = Callable[[], float]


class Traceable(Protocol):
    """What of an LLMEngine is looked at."""

    scheduler: Scheduler
    runner: Any
    output_processor: Any
    config: EngineConfig
    dtype: Any
    device: Any


TraceableT = TypeVar("TraceableT", bound=Traceable)


class Attached:
    """A tracer that is on an engine, until close()."""

    def __init__(self, tracer: Tracer, wraps: Wraps, clock: Clock) -> None:
        self.tracer, self._wraps, self._clock = tracer, wraps, clock

    def close(self) -> None:
        """Take it off and end the file. A second call does nothing."""
        self._wraps.undo()
        self.tracer.close(self._clock())

    @property
    def path(self) -> Any:
        return self.tracer.writer.path


def attach(engine: Traceable, writer: TraceWriter, clock: Clock = time.perf_counter, *, texts: bool = True) -> Attached:
    """Trace `engine` from here on; it should be idle. clock: seconds. texts: prompts and token ids, too."""
    tracer = Tracer(writer, engine.scheduler, header_of(engine, texts=texts), clock())
    wraps = Wraps()
    attach_scheduler(tracer, wraps, clock)

    def launching(execute_model: Callable[..., Any]) -> Callable[..., Any]:
        def launched(scheduled: SchedulerOutput) -> Any:
            result = execute_model(scheduled)
            tracer.launched(clock())
            return result

        return launched

    def updating(update_from_output: Callable[..., Any]) -> Callable[..., Any]:
        def updated(output: SchedulerOutput, token_ids: list[int | None], failed: Any = ()) -> Any:
            start = clock()
            result = update_from_output(output, token_ids, failed)
            tracer.drawn(output, token_ids, start, clock())
            return result

        return updated

    wraps.around(engine.runner, "execute_model", launching)
    wraps.around(engine.scheduler, "update_from_output", updating)
    wraps.after(engine.output_processor, "process_outputs", lambda *_: tracer.finish_step(clock()))
    return Attached(tracer, wraps, clock)


def make_engine(
    make: Callable[[], TraceableT], trace: str | os.PathLike[str] | None, *, texts: bool, nvtx: bool = False
) -> tuple[TraceableT, Attached | None]:
    """An engine by `make`, traced into the file `trace` if there is one. A path that cannot be written is refused
    before the engine is made.

    Raises:
        ValueError: `texts` is no bool, or what TraceWriter says of `trace`.
    """
    check_bool("trace_texts", texts)
    writer = None if trace is None else TraceWriter(trace)
    try:
        engine = make()
        if nvtx:
            attach_nvtx(engine)
    except BaseException:
        if writer is not None:
            writer.close()
        raise
    return engine, None if writer is None else attach(engine, writer, texts=texts)


def attach_scheduler(tracer: Tracer, wraps: Wraps, clock: Clock) -> None:
    """All but times of launch and wait, and tokens: tell the tracer those (launched, drawn, finish_step)."""
    scheduler = tracer.scheduler
    kv = scheduler.kv

    def scheduling(schedule: Callable[[], SchedulerOutput]) -> Callable[[], SchedulerOutput]:
        def scheduled() -> SchedulerOutput:
            start = clock()
            output = schedule()
            tracer.scheduled(output, start, clock())
            return output

        return scheduled

    def arrived(_: None, request: Request) -> None:
        tracer.arrived(request, clock())

    def preempted(status: SequenceStatus, request: Request, victims: list[Sequence], output: SchedulerOutput) -> None:
        tracer.changes.preempted(victims, swapped=status is SequenceStatus.SWAPPED)

    def resumed(moves: Any, seqs: list[Sequence], keep_free: int = 0) -> None:
        if moves is not None:
            tracer.changes.resumed(seqs)

    def look_at_pool() -> None:
        if isinstance(kv.pool, CachedBlockPool):
            wraps.around(kv.pool, "_evict", evicting)
            wraps.after(kv.pool, "cache_block", kept)

    def kept(is_kept: bool, block_id: int, *_: Any) -> None:
        if is_kept:
            tracer.changes.kept(block_id)

    def evicting(evict: Callable[[int], None]) -> Callable[[int], None]:
        def evicted(block_id: int) -> None:
            before = kv.pool.num_evicted  # type: ignore[attr-defined]
            evict(block_id)
            if kv.pool.num_evicted > before:  # type: ignore[attr-defined]
                tracer.changes.evicted(block_id)

        return evicted

    wraps.around(scheduler, "schedule", scheduling)
    wraps.after(scheduler, "add_request", arrived)
    wraps.after(scheduler, "fork", lambda _, request, parent, child: tracer.changes.branched(parent, child))
    wraps.after(scheduler, "start_over", lambda _: tracer.restarted())
    wraps.after(scheduler.preempter, "preempt", preempted)
    wraps.after(kv, "swap_in", resumed)
    wraps.after(kv, "forget", lambda _, seq: tracer.changes.ended(seq))
    wraps.after(kv, "clear", lambda _: look_at_pool())  # it has made another pool
    if isinstance(kv, PrefixCachingManager):
        wraps.after(kv, "reset_prefix_cache", lambda _: tracer.changes.forgot())
    look_at_pool()


def header_of(engine: Traceable, *, texts: bool) -> Header:
    scheduler, config = engine.scheduler, engine.config
    return make_header(
        scheduler,
        model=config.model_config.model,
        device=str(engine.device),
        dtype=str(engine.dtype).removeprefix("torch."),
        preemption_mode=config.scheduler_config.preemption_mode,
        clock="real",
        tokenizer=config.model_config.tokenizer,
        texts=texts,
    )


def make_header(
    scheduler: Scheduler,
    *,
    model: str,
    device: str,
    dtype: str,
    preemption_mode: str,
    clock: str,
    tokenizer: str | None = None,
    texts: bool = True,
) -> Header:
    kv = scheduler.kv
    return Header(
        version=VERSION,
        made_by=f"folovllm {__version__}",
        started=time.time(),
        clock=clock,
        model=model,
        device=device,
        dtype=dtype,
        num_blocks=kv.num_blocks,
        block_size=kv.block_size,
        num_swap_blocks=kv.num_swap_blocks,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_model_len=scheduler.max_model_len,
        prefix_caching=isinstance(kv, PrefixCachingManager),
        chunked_prefill=scheduler.chunks,
        policy="priority" if scheduler.by_priority else "fcfs",
        preemption_mode=preemption_mode,
        tokenizer=tokenizer,
        texts=texts,
    )
