"""The tracer: turns what the scheduler decides into records, one a step.

    add_request ─▶ changes.arrived() …
    schedule    ─▶ scheduled()   a record is begun: what changed, and how many blocks and requests
    launch      ─▶ launched()    ┐ references and readings of the clock
    update      ─▶ drawn()       ┘
    the end     ─▶ finish_step() what ended by it; the line is made and written

It knows the scheduler and no engine. attach.py puts it around one; a simulator, which has a scheduler and no model,
calls these methods with times of its own.

It runs in the step, between kernels that have just used all of the processor's caches, where each line of Python takes
several times as long as in a loop of its own. So the work is done in one place, and where nothing has changed there is
next to none: a comparison of two lists, and one line of text from numbers at hand.

vLLM: none
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict
from typing import Any

from folovllm.core.cached_block_pool import CachedBlockPool
from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import Request
from folovllm.tracing.changes import Changes, News
from folovllm.tracing.schema import PARTS, UNTOLD, Header
from folovllm.tracing.writer import TraceWriter, encode

HEAD = '{"type":"step","step":%d,"t":%d,"times":[' + ",".join(["%d"] * len(PARTS)) + "]"


class _Step:
    """A step that was scheduled and has not been finished."""

    __slots__ = ("counts", "decode_rows", "news", "output", "readings", "token_ids")

    def __init__(self, output: SchedulerOutput, readings: list[float]) -> None:
        self.output = output
        self.readings = readings
        """Of the clock, in seconds: when it began, and when its parts ended, as far as they have."""
        self.counts = ""
        """Blocks and requests, as they stand in the line."""
        self.news: News | None = None
        self.decode_rows: list[int] | None = None
        """Which rows decode; None: all."""
        self.token_ids: list[int | None] | None = None


class Tracer:
    """All times are seconds of one clock, whichever; `began` is its reading at t = 0."""

    def __init__(self, writer: TraceWriter, scheduler: Scheduler, header: Header, began: float) -> None:
        self.writer, self.scheduler, self._began = writer, scheduler, began
        self.changes = Changes(tells_texts=header.texts)
        self._tells_texts = header.texts
        self._steps: deque[_Step] = deque()  # two where the engine runs ahead
        self._num_written = 0
        self._counts = self._count()
        self._pattern, self._pattern_of = "", ("", -1)
        """The text of a record but for its numbers, and which counts and how many tokens it is made for."""
        writer.write(encode({"type": "header", **asdict(header)}) + "\n")

    def microseconds(self, reading: float) -> int:
        return int((reading - self._began) * 1e6 + 0.5)  # round() takes twice as long

    def arrived(self, request: Request, at: float) -> None:
        self.changes.arrived(request, self.microseconds(at))

    def restarted(self) -> None:
        """A step was cut short, and the scheduler has started over."""
        while self._steps:
            self._write(self._steps.popleft(), {"failed": True})
        self.changes.restarted()

    def scheduled(self, output: SchedulerOutput, began: float, until: float) -> None:
        """Begin the record of a step: `output` as the scheduler has just returned it, asked from `began` on."""
        step = _Step(output, [began, until])
        if self.changes.are_in(output):
            step.news, step.decode_rows = self.changes.take(output)
            self._counts = self._count()
        step.counts = self._counts
        self._steps.append(step)

    def launched(self, at: float) -> None:
        """The step that was scheduled last is on its way."""
        if self._steps:
            self._steps[-1].readings.append(at)

    def drawn(self, output: SchedulerOutput, token_ids: list[int | None], at: float, until: float) -> None:
        """The tokens of a step, one per row: when they had come, and until when they were taken in."""
        for step in self._steps:  # the first, as a rule; none, where it was launched before anybody looked
            if step.output is output:
                step.readings += (at, until)
                step.token_ids = token_ids

    def finish_step(self, at: float) -> None:
        """Write the record whose tokens have come: its outputs are made."""
        # More than one where an error kept the one before from its end.
        while self._steps and self._steps[0].token_ids is not None:
            step = self._steps.popleft()
            step.readings.append(at)
            more = self.changes.take_ended() if self.changes.told else {}
            if step.decode_rows is not None:
                assert step.token_ids is not None
                more |= self.changes.first_tokens(step.output, step.token_ids, step.decode_rows)
            self._write(step, more)

    def close(self, at: float) -> None:
        """Write what has not been written, and the last line."""
        while self._steps:
            self._write(self._steps.popleft(), {})
        end: dict[str, Any] = {"type": "end", "t": self.microseconds(at)}
        self.writer.write(encode(end | self.changes.take_ended()) + "\n")
        self.writer.close()

    def _write(self, step: _Step, more: News) -> None:
        """A step as one line. A JSON encoder takes twice as long, and most records are numbers only."""
        began, readings = self._began, step.readings
        if len(readings) <= len(PARTS):  # parts that it never came to took nothing
            readings += readings[-1:] * (1 + len(PARTS) - len(readings))
        # Differences of whole microseconds, so that they add up; and no loop, which takes half as long again.
        first, second, third, fourth, fifth, sixth = readings
        a = int((first - began) * 1e6 + 0.5)
        b = int((second - began) * 1e6 + 0.5)
        c = int((third - began) * 1e6 + 0.5)
        d = int((fourth - began) * 1e6 + 0.5)
        e = int((fifth - began) * 1e6 + 0.5)
        f = int((sixth - began) * 1e6 + 0.5)
        tokens = self._tokens(step) if step.decode_rows is not None or not self._tells_texts else step.token_ids or ()
        if self._pattern_of != (step.counts, len(tokens)):  # most records are like the one before
            self._make_pattern(step.counts, len(tokens))
        try:
            line = self._pattern % (self._num_written, a, b - a, c - b, d - c, e - d, f - e, *tokens)
        except TypeError:  # some rows drew none
            self._make_pattern(step.counts, 0)
            line = self._pattern % (self._num_written, a, b - a, c - b, d - c, e - d, f - e)
            more = {"tokens": list(tokens)} | more
        self._num_written += 1
        if step.news or more:
            line = line[:-2] + "," + encode((step.news or {}) | more)[1:] + "\n"
        self.writer.write(line)

    def _make_pattern(self, counts: str, num_tokens: int) -> None:
        tokens = ',"tokens":[' + ",".join(["%d"] * num_tokens) + "]" if num_tokens else ""
        self._pattern, self._pattern_of = HEAD + counts + tokens + "}\n", (counts, num_tokens)

    def _tokens(self, step: _Step) -> list[int | None]:
        """Those of the rows that decode."""
        tokens = step.token_ids or []
        if step.decode_rows is not None and tokens:
            tokens = [tokens[row] for row in step.decode_rows]
        return tokens if self._tells_texts else [None if token is None else UNTOLD for token in tokens]

    def _count(self) -> str:
        """Blocks and requests, as they stand in the line. They only change where a record has something to say."""
        scheduler, pool = self.scheduler, self.scheduler.kv.pool
        findable = pool.num_cached if isinstance(pool, CachedBlockPool) else 0
        counts = {"findable": findable, "waiting": len(scheduler.waiting), "swapped": len(scheduler.swapped)}
        return f',"free":{pool.num_free}' + "".join(f',"{name}":{count}' for name, count in counts.items() if count)
