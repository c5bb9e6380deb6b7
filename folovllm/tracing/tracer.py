"""The tracer: turns what the scheduler decides into records, one a step.

    an event    ─▶ deltas.arrived() …
    schedule    ─▶ scheduled()   a record is begun: its deltas, and how many blocks and requests
    launch      ─▶ launched()    ┐ references and readings of the clock
    update      ─▶ updated()     ┘
    the end     ─▶ step_ended()  what ended by it; the line is made and written

It knows the scheduler and no engine: a simulator has a scheduler, no model, and simulated time.

It runs in the step, between kernels that have just used all of the processor's caches, where each line of Python takes
several times as long as in a tight loop. So the work is done in one place, and where nothing has changed there is
next to none: a comparison of two lists, and one line of text from numbers at hand.

vLLM: none
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from folovllm.core.observer import EngineObserver, Observers
from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import Drafts, SchedulerOutput
from folovllm.tracing.deltas import DeltaEncoder, Fields
from folovllm.tracing.schema import PARTS, UNTOLD, Header
from folovllm.tracing.writer import TraceWriter, encode

Clock = Callable[[], float]
"""Gives seconds."""


class _Step:
    """A step that was scheduled and has not been finished."""

    __slots__ = ("counts", "decode_rows", "drafts", "fields", "lengths", "output", "readings", "token_ids")

    def __init__(self, output: SchedulerOutput, readings: list[float]) -> None:
        self.output = output
        self.readings = readings
        """Of the clock, in seconds: when it began, and when its parts ended, as far as they have."""
        self.counts = ""
        """Blocks and requests, as written in the line."""
        self.fields: Fields | None = None
        self.decode_rows: list[int] | None = None
        """Which rows decode; None: all."""
        self.token_ids: list[int | None] | None = None
        self.lengths: dict[str, int] = {}
        """Of the sequences with draft tokens, by their ids."""
        self.drafts: Drafts = {}


class Tracer(EngineObserver):
    """From its making until close() it is among `observers`, those of the scheduler.

    clock: what it says now is t = 0.
    """

    def __init__(
        self, writer: TraceWriter, scheduler: Scheduler, observers: Observers, header: Header, clock: Clock
    ) -> None:
        self.writer, self.scheduler, self._clock, self._began = writer, scheduler, clock, clock()
        have_windows = scheduler.kv.groups.have_windows
        self.deltas = DeltaEncoder(
            lambda: self.microseconds(clock()), with_texts=header.texts, have_windows=have_windows
        )
        self._with_texts = header.texts
        self._steps: deque[_Step] = deque()  # two where the engine runs ahead
        self._num_written = 0
        self._counts = self._count()
        self._since = self._began  # when the scheduler or the update that runs was called
        writer.write(encode({"type": "header", **asdict(header)}) + "\n")
        self._observers = observers
        observers += (self.deltas, self)

    def microseconds(self, reading: float) -> int:
        return int((reading - self._began) * 1e6 + 0.5)  # round() takes twice as long

    def started_over(self) -> None:
        while self._steps:
            self._write(self._steps.popleft(), {"failed": True})

    def scheduling(self) -> None:
        self._since = self._clock()

    def scheduled(self, output: SchedulerOutput) -> None:
        """Begin the record of a step."""
        step = _Step(output, [self._since, self._clock()])
        if self.deltas.has_changes(output):
            step.fields, step.decode_rows = self.deltas.take(output)
            self._counts = self._count()
        step.counts = self._counts
        if output.num_lookahead_tokens:
            lengths = {seq.seq_id: seq.get_len() for seq in output.scheduled_seqs}
            step.lengths = {seq_id: lengths[seq_id] for seq_id in output.num_lookahead_tokens}
        self._steps.append(step)

    def launched(self) -> None:
        if self._steps:
            self._steps[-1].readings.append(self._clock())

    def updating(self, output: SchedulerOutput) -> None:
        self._since = self._clock()

    def updated(self, output: SchedulerOutput, token_ids: Iterable[int | None], drafts: Drafts) -> None:
        for step in self._steps:  # the first, as a rule; none, where it was launched before the trace began
            if step.output is output:
                step.readings += (self._since, self._clock())
                step.token_ids, step.drafts = list(token_ids), drafts

    def step_ended(self, outputs: list[Any]) -> None:
        """Write the record whose tokens have come."""
        # More than one where an error kept the one before from its end.
        while self._steps and self._steps[0].token_ids is not None:
            step = self._steps.popleft()
            step.readings.append(self._clock())
            more = self.deltas.take_ended() if self.deltas.events else {}
            if step.decode_rows is not None:
                assert step.token_ids is not None
                more |= self.deltas.first_tokens(step.output, step.token_ids, step.decode_rows)
            if step.lengths:
                more |= self.deltas.draft_tokens(step.output, step.lengths, step.drafts)
            self._write(step, more)

    def close(self) -> None:
        """Write what has not been written, and the last line. A second call does nothing."""
        if self not in self._observers:
            return
        self._observers.remove(self)
        self._observers.remove(self.deltas)
        while self._steps:
            self._write(self._steps.popleft(), {})
        end: dict[str, Any] = {"type": "end", "t": self.microseconds(self._clock())}
        self.writer.write(encode(end | self.deltas.take_ended()) + "\n")
        self.writer.close()

    def _write(self, step: _Step, more: Fields) -> None:
        readings = step.readings
        readings += readings[-1:] * (1 + len(PARTS) - len(readings))  # parts that it did not reach took no time
        at = [self.microseconds(reading) for reading in readings]
        times = [b - a for a, b in pairwise(at)]  # of whole microseconds, so that they add up
        self._num_written += 1
        # Lists of integers are JSON as Python writes them; an encoder takes several times as long.
        line = f'{{"type":"step","step":{self._num_written},"t":{at[0]},"times":{times}{step.counts}'
        if tokens := self._tokens(step):
            line += f',"tokens":{encode(tokens) if None in tokens else tokens}'
        fields = (step.fields or {}) | more if step.fields or more else None
        self.writer.write(f"{line},{encode(fields)[1:]}\n" if fields else line + "}\n")

    def _tokens(self, step: _Step) -> list[int | None]:
        """Those of the rows that decode."""
        tokens = step.token_ids or []
        if step.decode_rows is not None and tokens:
            tokens = [tokens[row] for row in step.decode_rows]
        return tokens if self._with_texts else [None if token is None else UNTOLD for token in tokens]

    def _count(self) -> str:
        """Blocks and requests, as written in the line. They only change where a record has fields beside them."""
        scheduler, pool = self.scheduler, self.scheduler.kv.pool
        counts = {"findable": pool.num_cached, "waiting": len(scheduler.waiting), "swapped": len(scheduler.swapped)}
        return f',"free":{pool.num_free}' + "".join(f',"{name}":{count}' for name, count in counts.items() if count)
