"""The tracer: turns what the scheduler decides into records, one a step.

    add_request ─▶ arrived()
    schedule    ─▶ scheduled()   a record is begun: rows, block tables, what moved
    launch      ─▶ launched()    ┐ references and readings of the clock
    update      ─▶ drawn()       ┘
    the end     ─▶ finish_step() what ended by it; the line is made and written

It knows the scheduler and no engine. attach.py puts it around one; a simulator, which has a scheduler and no model,
calls these methods with times of its own. What it remembers is of sequences that are alive.

It runs in the step, between kernels that have just used all of the processor's caches, where each line of Python takes
several times as long as in a loop of its own. So the work is done in one place, and where nothing has changed there is
next to none: a comparison of two lists, and one line of text from numbers at hand.

vLLM: none
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from folovllm.core.cached_block_pool import CachedBlockPool
from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import Request, Sequence, SequenceStatus
from folovllm.tracing.schema import PARTS, UNTOLD, Arrival, Header
from folovllm.tracing.writer import TraceWriter, encode

PROMPT_CHARACTERS, PROMPT_IDS = 2000, 500
CONTEXT_TOKENS = 5  # as many of the prompt as the detokenizer looks back at
RUNNING = SequenceStatus.RUNNING

_REASONS = {
    SequenceStatus.FINISHED_STOPPED: "stop",
    SequenceStatus.FINISHED_LENGTH_CAPPED: "length",
    SequenceStatus.FINISHED_ABORTED: "abort",
    SequenceStatus.FINISHED_IGNORED: "ignored",
}


@dataclass(slots=True)
class _Step:
    """A step that was scheduled and has not been finished. Readings of the clock are in seconds."""

    output: SchedulerOutput
    number: int
    began: float
    readings: list[float]
    """When its parts ended, as far as they have."""
    news: dict[str, Any]
    """What the record says beyond the numbers of every step."""
    decode_rows: list[int] | None
    """Which rows decode; None: all."""
    counts: str
    """Blocks and requests, as they stand in the line."""
    token_ids: list[int | None] | None = None


class Tracer:
    """All times are seconds of one clock, whichever; `began` is its reading at t = 0."""

    def __init__(self, writer: TraceWriter, scheduler: Scheduler, header: Header, began: float) -> None:
        self.writer, self.scheduler, self._began = writer, scheduler, began
        self._tells_texts = header.texts
        self._steps: deque[_Step] = deque()  # two where the engine runs ahead
        self._num_steps = self._num_requests = self._num_seqs = 0
        self._requests: dict[str, tuple[int, Request]] = {}  # by id, of the unfinished ones
        self._numbers: dict[Sequence, int] = {}
        self._tables: dict[Sequence, list[int]] = {}  # as the last record left them
        self._decoding: list[Sequence] = []
        self._decoders: set[Sequence] = set()  # the same, but for those that have given way since
        # Since the last record was begun, or finished:
        self._fresh: list[tuple[int, int, str]] = []
        self._arrived: list[dict[str, Any]] = []
        self._gone: list[Sequence] = []
        self._moved: list[Sequence] = []
        self._preempted: list[tuple[int, str]] = []
        self._resumed: list[int] = []
        self._branched: list[tuple[int, int]] = []
        self._kept: list[int] = []
        self._evicted: list[int] = []
        self._ended: list[tuple[int, str]] = []
        self._flags: dict[str, bool] = {}
        writer.write(encode({"type": "header", **asdict(header)}))

    def microseconds(self, reading: float) -> int:
        return round((reading - self._began) * 1e6)

    def arrived(self, request: Request, at: float) -> None:
        params, prompt, ids = request.sampling_params, request.prompt, request.prompt_token_ids
        number, self._num_requests = self._num_requests, self._num_requests + 1
        self._requests[request.request_id] = number, request
        arrival = Arrival(
            request=number,
            id=request.request_id,
            t=self.microseconds(at),
            prompt_tokens=len(ids),
            prompt=None,
            max_tokens=params.max_tokens,
            num_seqs=params.num_seqs,
            priority=request.priority,
        )
        if self._tells_texts:
            arrival.prompt = None if prompt is None else prompt[:PROMPT_CHARACTERS]
            arrival.prompt_ids = ids[:PROMPT_IDS] if prompt is None else []
            arrival.context = ids[-CONTEXT_TOKENS:]
        self._arrived.append(asdict(arrival))
        self._number(request.first_seq())

    def preempted(self, victims: Iterable[Sequence], *, swapped: bool) -> None:
        for seq in victims:
            self._preempted.append((self._number(seq), "swap" if swapped else "recompute"))
            self._moved.append(seq)
            self._decoders.discard(seq)

    def resumed(self, seqs: Iterable[Sequence]) -> None:
        for seq in seqs:
            self._resumed.append(self._number(seq))
            self._moved.append(seq)

    def branched(self, parent: Sequence, child: Sequence) -> None:
        """A beam has got a fork, which shares all that the beam has computed."""
        self._branched.append((self._number(parent), self._number(child)))
        self._moved.append(child)

    def kept(self, block_id: int) -> None:
        """A block can be found from here on."""
        self._kept.append(block_id)

    def evicted(self, block_id: int) -> None:
        self._evicted.append(block_id)

    def forgot(self) -> None:
        """The prefix cache was reset."""
        self._kept, self._evicted, self._flags = [], [], {**self._flags, "forgotten": True}

    def ended(self, seq: Sequence) -> None:
        """A sequence has a finished status, and its blocks are free."""
        self._ended.append((self._number(seq), _REASONS[seq.status]))
        self._gone.append(seq)
        known = self._requests.get(seq.request_id)
        if known is not None and known[1].is_finished():
            del self._requests[seq.request_id]

    def restarted(self) -> None:
        """A step was cut short, and the scheduler has started over."""
        while self._steps:
            self._write(self._steps.popleft(), {"failed": True})
        self._tables, self._decoding, self._decoders = {}, [], set()
        self._moved, self._preempted, self._resumed, self._branched = [], [], [], []
        self._kept, self._evicted = [], []
        self._flags = {"restarted": True}

    def scheduled(self, output: SchedulerOutput, began: float, until: float) -> None:
        """Begin the record of a step: `output` as the scheduler has just returned it, asked from `began` on."""
        scheduler, pool = self.scheduler, self.scheduler.kv.pool
        news: dict[str, Any] = {}
        # The usual step: the same sequences decode. The lists are compared by identity, without a call for each.
        only_decodes = output.total_num_scheduled_tokens == len(output.scheduled_seqs) and not (
            output.num_prompt_tokens or output.forks
        )
        if only_decodes and output.scheduled_seqs == self._decoding:
            decode_rows = None
        else:
            rows = self._add_rows(news, output)
            decode_rows = None if only_decodes else rows
        if output.grown_seqs or self._moved or self._gone:
            self._add_tables(news, output)
        if output.moves_blocks:
            self._add_moves(news, output)
        self._add_news(news)
        counts = f',"free":{pool.num_free}'
        if isinstance(pool, CachedBlockPool):
            counts += f',"findable":{pool.num_cached}'
        if scheduler.waiting:
            counts += f',"waiting":{len(scheduler.waiting)}'
        if scheduler.swapped:
            counts += f',"swapped":{len(scheduler.swapped)}'
        self._steps.append(_Step(output, self._num_steps, began, [until], news, decode_rows, counts))
        self._num_steps += 1

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
            more: dict[str, Any] = {}
            if step.decode_rows is not None:
                self._add_first(more, step)
            if self._ended:
                more["ended"], self._ended = self._ended, []
            self._write(step, more)

    def close(self, at: float) -> None:
        """Write what has not been written, and the last line."""
        while self._steps:
            self._write(self._steps.popleft(), {})
        end: dict[str, Any] = {"type": "end", "t": self.microseconds(at)}
        self.writer.write(encode(end | ({"ended": self._ended} if self._ended else {})))
        self.writer.close()

    def _write(self, step: _Step, more: dict[str, Any]) -> None:
        """A step as one line. A JSON encoder takes three times as long, and most records are numbers only."""
        began, readings = self._began, step.readings
        readings += readings[-1:] * (len(PARTS) - len(readings))  # parts that it never came to took nothing
        # Differences of whole microseconds, so that they add up.
        t = last = round((step.began - began) * 1e6)
        line = f'{{"type":"step","step":{step.number},"t":{t}{step.counts},"times":['
        for reading in readings:
            at = round((reading - began) * 1e6)
            line += f"{at - last if at > last else 0},"
            last = at
        line = line[:-1] + "]"
        if step.token_ids:
            tokens = step.token_ids if step.decode_rows is None else [step.token_ids[row] for row in step.decode_rows]
            if not self._tells_texts:
                tokens = [None if token is None else UNTOLD for token in tokens]
            if tokens:
                line += ',"tokens":' + repr(tokens).replace(" ", "").replace("None", "null")
        if step.news or more:
            line += "," + encode(step.news | more)[1:-1]
        self.writer.write(line + "}")

    def _add_first(self, news: dict[str, Any], step: _Step) -> None:
        """Tokens of the rows that do not decode."""
        assert step.token_ids is not None
        assert step.decode_rows is not None
        decoding, first = set(step.decode_rows), []
        for row, (seq, token_id) in enumerate(zip(step.output.rows, step.token_ids, strict=True)):
            if row not in decoding and token_id is not None:
                first.append((self._number(seq), token_id if self._tells_texts else UNTOLD))
        if first:
            news["first"] = first

    def _number(self, seq: Sequence) -> int:
        number = self._numbers.get(seq)
        if number is None:
            number, self._num_seqs = self._num_seqs, self._num_seqs + 1
            self._numbers[seq] = number
            request, _ = self._requests.get(seq.request_id, (-1, None))
            self._fresh.append((number, request, seq.seq_id))
        return number

    def _add_news(self, news: dict[str, Any]) -> None:
        """What was told since the record before."""
        if self._arrived:
            news["arrived"], self._arrived = self._arrived, []
        if self._fresh:
            news["seqs"], self._fresh = self._fresh, []
        if self._preempted:
            news["preempted"], self._preempted = self._preempted, []
        if self._resumed:
            news["resumed"], self._resumed = self._resumed, []
        if self._branched:
            news["branched"], self._branched = self._branched, []
        if self._kept:
            news["kept"], self._kept = self._kept, []
        if self._evicted:
            news["evicted"], self._evicted = self._evicted, []
        if self._ended:
            news["left"], self._ended = self._ended, []
        if self._flags:
            news |= self._flags
            self._flags = {}

    def _add_moves(self, news: dict[str, Any], output: SchedulerOutput) -> None:
        for name, pairs in (
            ("copies", output.blocks_to_copy),
            ("swapped_out", output.blocks_to_swap_out),
            ("swapped_in", output.blocks_to_swap_in),
        ):
            if pairs:
                news[name] = pairs

    def _add_rows(self, news: dict[str, Any], output: SchedulerOutput) -> list[int]:
        """Who computes what. Returns which rows decode."""
        prefill, found, decoding, decode_rows = [], [], [], []
        back = {*self._resumed, *(child for _, child in self._branched)}  # these have what they have found
        decoders = self._decoders
        for row, (seq, num_tokens) in enumerate(zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True)):
            if num_tokens == 1 and seq in decoders:  # it goes on: most rows
                decoding.append(seq)
                decode_rows.append(row)
                continue
            start = seq.num_computed_tokens
            if seq not in self._tables:
                self._moved.append(seq)
                if start and self._number(seq) not in back:
                    found.append((self._number(seq), start))
            if num_tokens == 1 and start >= len(seq.data.prompt_token_ids):
                decoding.append(seq)
                decode_rows.append(row)
            else:
                prefill.append((self._number(seq), start, num_tokens))
        if prefill:
            news["prefill"] = prefill
        if found:
            news["found"] = found
        if decoding != self._decoding:
            news["decode"] = [self._number(seq) for seq in decoding]
            self._decoding, self._decoders = decoding, set(decoding)
        if output.forks:
            news["forks"] = [(self._number(parent), self._number(child)) for parent, child in output.forks]
            self._moved += [child for _, child in output.forks]
        return decode_rows

    def _add_tables(self, news: dict[str, Any], output: SchedulerOutput) -> None:
        """Block tables that differ from what the record before left."""
        tables = []
        for seq in dict.fromkeys([*self._gone, *self._moved, *output.grown_seqs]):
            before = self._tables.setdefault(seq, [])
            after = seq.block_ids if seq.status is RUNNING else []
            place = len(before)
            if after[:place] != before:  # else it has grown at its end, if at all
                place = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(after))
            elif len(after) == place:
                continue
            added = after[place:]
            tables.append((self._number(seq), place, added))
            before[place:] = added
        if tables:
            news["tables"] = tables
        for seq in dict.fromkeys([*self._gone, *self._moved]):
            if seq.status is not RUNNING:
                self._tables.pop(seq, None)  # should it come back, what it then finds is news
        for seq in dict.fromkeys(self._gone):
            self._numbers.pop(seq, None)
            self._decoders.discard(seq)
        self._gone, self._moved = [], []
