"""Gives an engine its observers: a tracer, NVTX ranges, and what a caller has besides.

vLLM: none
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from folovllm import __version__
from folovllm.core.observer import Attach
from folovllm.core.scheduler import Scheduler
from folovllm.tracing.nvtx import attach_nvtx
from folovllm.tracing.schema import VERSION, Header
from folovllm.tracing.tracer import Clock, Tracer
from folovllm.tracing.writer import TraceWriter
from folovllm.utils.checks import check_bool

EngineT = TypeVar("EngineT")  # LLMEngine, which is on the floor above this one


def attach(engine: Any, writer: TraceWriter, clock: Clock = time.perf_counter, *, texts: bool = True) -> Tracer:
    """Trace `engine`, which should be idle, until close() of what this returns. texts: prompts and token ids, too."""
    header = make_header(
        engine.scheduler,
        model=engine.config.model_config.model,
        device=str(engine.device),
        dtype=str(engine.dtype).removeprefix("torch."),
        preemption_mode=engine.config.scheduler_config.preemption_mode,
        clock="real",
        tokenizer=engine.config.model_config.tokenizer,
        texts=texts,
    )
    return Tracer(writer, engine.scheduler, engine.observers, header, clock)


class TraceFile:
    """A file that gets a record of every step of an engine: LLM(observers=[trace]), whole after trace.close().

    Args:
        texts: whether the file has prompts and tokens, too; without them, only how many.

    Raises:
        ValueError: `texts` is no bool, or what TraceWriter says of the path.
    """

    def __init__(self, path: str | os.PathLike[str], *, texts: bool = True) -> None:
        check_bool("texts", texts)
        self.texts = texts
        self.writer = TraceWriter(path)
        self._open: TraceWriter | Tracer = self.writer

    def __call__(self, engine: Any) -> None:
        self._open = attach(engine, self.writer, texts=self.texts)

    def close(self) -> None:
        self._open.close()


def make_engine(
    make: Callable[[], EngineT],
    trace: str | os.PathLike[str] | None,
    *,
    texts: bool,
    nvtx: bool = False,
    observers: Iterable[Attach] = (),
) -> tuple[EngineT, Tracer | None]:
    """An engine by `make`, with its observers, and traced into the file `trace` if there is one. A path that cannot
    be written is refused before the engine is made.

    Raises:
        ValueError: `texts` is no bool, or what TraceWriter says of `trace`.
    """
    check_bool("trace_texts", texts)
    writer = None if trace is None else TraceWriter(trace)
    try:
        engine = make()
        for observe in (attach_nvtx, *observers) if nvtx else observers:
            observe(engine)
    except BaseException:
        if writer is not None:
            writer.close()
        raise
    return engine, None if writer is None else attach(engine, writer, texts=texts)


def make_header(scheduler: Scheduler, **facts: Any) -> Header:
    """facts: what the scheduler does not know."""
    kv = scheduler.kv
    return Header(
        version=VERSION,
        made_by=f"folovllm {__version__}",
        started=time.time(),
        num_blocks=kv.num_blocks,
        block_size=kv.block_size,
        num_swap_blocks=kv.num_swap_blocks,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_model_len=scheduler.max_model_len,
        prefix_caching=kv.enable_prefix_caching,
        chunked_prefill=scheduler.chunks,
        policy="priority" if scheduler.lines.by_priority else "fcfs",
        **facts,
    )
