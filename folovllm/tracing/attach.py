"""Traces: a file that gets a record of every step of an engine, by EngineCore.listen.

vLLM: none
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

from folovllm import __version__
from folovllm.core.scheduler import Scheduler
from folovllm.core.step_record import StepRecord
from folovllm.tracing.records import UNTOLD, VERSION, Header, Step, ended_of
from folovllm.tracing.writer import TraceWriter, encode
from folovllm.utils.checks import check_bool

FIELDS = [each.name for each in fields(Step)]
WITHOUT_TEXTS: dict[str, Any] = {"prompt": None, "prompt_ids": [], "context": []}


class Tracer:
    """A listener that writes each record, from the header on until close()."""

    def __init__(self, writer: TraceWriter, header: Header, scheduler: Scheduler) -> None:
        self.writer, self._texts, self._scheduler = writer, header.texts, scheduler
        self._stop: Callable[[], None] = lambda: None
        self._is_open = True
        self._num_steps = 0
        self._before: dict[str, tuple[Any, str]] = {}  # by field: what it was last, and its JSON
        writer.write(encode({"type": "header", **asdict(header)}) + "\n")

    def __call__(self, record: StepRecord) -> None:
        self._num_steps += 1
        step, line = Step.of(self._num_steps, record), ['{"type":"step"']
        for name in FIELDS:
            if value := getattr(step, name):
                line.append(f',"{name}":{self._json(name, value)}')
        line.append("}\n")
        self.writer.write("".join(line))

    def _json(self, name: str, value: Any) -> str:
        """An encoder takes most of a trace's time. So it is not asked where a field is as in the record before, nor for
        integers, which are JSON as Python writes them."""
        if type(value) is int:
            return str(value)
        if name == "arrived":
            value = [asdict(each) | ({} if self._texts else WITHOUT_TEXTS) for each in value]
        elif name == "token_ids" and not self._texts:
            value = [None if token is None else UNTOLD for token in value]
        elif name == "later" and not self._texts:
            value = {seq_id: [UNTOLD] * len(tokens) for seq_id, tokens in value.items()}
        before, text = self._before.get(name, (None, ""))
        if value != before:
            is_plain = name in ("num_computed_tokens", "token_ids") and None not in value
            text = str(value) if is_plain else encode(value)
            self._before[name] = value, text
        return text

    def close(self, seconds: float | None = None) -> None:
        """Write the last line; a second call does nothing. seconds: of the clock, where that is not time.time()."""
        if self._is_open:
            self._is_open = False
            record = self._scheduler.record
            ended = [] if record is None else ended_of(record)
            self._stop()
            now = int((time.time() if seconds is None else seconds) * 1e6)
            last = {"type": "end", "t": now, "finished": self._scheduler.finished_seq_ids, "ended": ended}
            self.writer.write(encode(last) + "\n")
            self.writer.close()


def attach(engine: Any, writer: TraceWriter, *, texts: bool = True) -> Tracer:
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
    tracer = Tracer(writer, header, engine.scheduler)
    tracer._stop = engine.core.listen(tracer)
    return tracer


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


def make_header(scheduler: Scheduler, **facts: Any) -> Header:
    """facts: what the scheduler does not know."""
    kv = scheduler.kv
    return Header(
        version=VERSION,
        made_by=f"folovllm {__version__}",
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
