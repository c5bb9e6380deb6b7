"""The tracer: turns what the scheduler decides into records, one a step.

    add_request ─▶ arrived()
    schedule    ─▶ scheduled()   a record is begun: rows, block tables, what moved
    update      ─▶ drawn()       its tokens
    the end     ─▶ finish_step() what ended by it; the record is written

It knows the scheduler and no engine. attach.py puts it around one; a simulator, which has a scheduler and no model,
calls these methods with times of its own. What it remembers is of sequences that are alive.

vLLM: none
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from folovllm.core.prefix_caching_manager import PrefixCachingManager
from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import Request, Sequence, SequenceStatus
from folovllm.tracing.schema import PARTS, Arrival, Header
from folovllm.tracing.writer import TraceWriter

PROMPT_CHARACTERS = 200
RUNNING = SequenceStatus.RUNNING

_REASONS = {
    SequenceStatus.FINISHED_STOPPED: "stop",
    SequenceStatus.FINISHED_LENGTH_CAPPED: "length",
    SequenceStatus.FINISHED_ABORTED: "abort",
    SequenceStatus.FINISHED_IGNORED: "ignored",
}


@dataclass(slots=True)
class _Step:
    """A step that was scheduled and has not been finished."""

    output: SchedulerOutput
    record: dict[str, Any]
    decode_rows: list[int] | None
    """Which rows decode; None: all."""
    is_drawn: bool = False


class Tracer:
    """All times are seconds of one clock, whichever; `began` is its reading at t = 0."""

    def __init__(self, writer: TraceWriter, scheduler: Scheduler, header: Header, began: float) -> None:
        self.writer, self.scheduler, self._began = writer, scheduler, began
        self._steps: deque[_Step] = deque()  # two where the engine runs ahead
        self._num_steps = self._num_requests = self._num_seqs = 0
        self._requests: dict[str, tuple[int, Request]] = {}  # by id, of the unfinished ones
        self._numbers: dict[Sequence, int] = {}
        self._tables: dict[Sequence, list[int]] = {}  # as the last record left them
        self._decoding: list[Sequence] = []
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
        writer.write({"type": "header", **asdict(header)})

    def microseconds(self, reading: float) -> int:
        return round((reading - self._began) * 1e6)

    def arrived(self, request: Request, at: float) -> None:
        params, prompt = request.sampling_params, request.prompt
        number, self._num_requests = self._num_requests, self._num_requests + 1
        self._requests[request.request_id] = number, request
        arrival = Arrival(
            request=number,
            id=request.request_id,
            t=self.microseconds(at),
            prompt_tokens=len(request.prompt_token_ids),
            prompt=None if prompt is None else prompt[:PROMPT_CHARACTERS],
            max_tokens=params.max_tokens,
            num_seqs=params.num_seqs,
            priority=request.priority,
        )
        self._arrived.append(asdict(arrival))
        self._number(request.first_seq())

    def preempted(self, victims: Iterable[Sequence], *, swapped: bool) -> None:
        for seq in victims:
            self._preempted.append((self._number(seq), "swap" if swapped else "recompute"))
            self._moved.append(seq)

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
            step = self._steps.popleft()
            step.record["failed"] = True
            self._write_unfinished(step.record)
        self._tables, self._decoding = {}, []
        self._moved, self._preempted, self._resumed, self._branched = [], [], [], []
        self._kept, self._evicted = [], []
        self._flags = {"restarted": True}

    def scheduled(self, output: SchedulerOutput, began: float, until: float) -> None:
        """Begin the record of a step: `output` as the scheduler has just returned it, asked from `began` on."""
        record: dict[str, Any] = {
            "type": "step",
            "step": self._num_steps,
            "t": self.microseconds(began),
            "times": [],
        }
        self._note_time(record, until)
        self._num_steps += 1
        decode_rows = self._add_rows(record, output)
        self._add_tables(record, output)
        for name, pairs in (
            ("copies", output.blocks_to_copy),
            ("swapped_out", output.blocks_to_swap_out),
            ("swapped_in", output.blocks_to_swap_in),
        ):
            if pairs:
                record[name] = pairs
        for name in ("arrived", "fresh", "preempted", "resumed", "branched", "kept", "evicted"):
            if news := getattr(self, f"_{name}"):
                record["seqs" if name == "fresh" else name] = news
                setattr(self, f"_{name}", [])
        if self._ended:
            record["left"], self._ended = self._ended, []
        record |= self._flags
        self._flags = {}
        kv = self.scheduler.kv
        record["free"] = kv.pool.num_free
        if isinstance(kv, PrefixCachingManager):
            record["findable"] = kv.pool.num_cached
        if self.scheduler.waiting:
            record["waiting"] = len(self.scheduler.waiting)
        if self.scheduler.swapped:
            record["swapped"] = len(self.scheduler.swapped)
        self._steps.append(_Step(output, record, decode_rows))

    def launched(self, at: float) -> None:
        """The step that was scheduled last is on its way."""
        if self._steps:
            self._note_time(self._steps[-1].record, at)

    def drawn(self, output: SchedulerOutput, token_ids: list[int | None], at: float, until: float) -> None:
        """The tokens of a step, one per row: when they had come, and until when they were taken in."""
        step = next((step for step in self._steps if step.output is output), None)
        if step is None:
            return  # it was launched before anybody looked
        rows, record = output.rows, step.record
        self._note_time(record, at)
        self._note_time(record, until)
        step.is_drawn = True
        if step.decode_rows is None:
            record["tokens"] = token_ids
            return
        if step.decode_rows:
            record["tokens"] = [token_ids[row] for row in step.decode_rows]
        decoding = set(step.decode_rows)
        first = [
            (self._number(seq), token_id)
            for row, (seq, token_id) in enumerate(zip(rows, token_ids, strict=True))
            if row not in decoding and token_id is not None
        ]
        if first:
            record["first"] = first

    def finish_step(self, at: float) -> None:
        """Write the record whose tokens have come: its outputs are made."""
        while self._steps and self._steps[0].is_drawn:  # more than one where an error kept the one before from its end
            record = self._steps.popleft().record
            self._note_time(record, at)
            if self._ended:
                record["ended"], self._ended = self._ended, []
            self.writer.write(record)

    def close(self, at: float) -> None:
        """Write what has not been written, and the last line."""
        while self._steps:
            self._write_unfinished(self._steps.popleft().record)
        end: dict[str, Any] = {"type": "end", "t": self.microseconds(at)}
        self.writer.write(end | ({"ended": self._ended} if self._ended else {}))
        self.writer.close()

    def _note_time(self, record: dict[str, Any], at: float) -> None:
        """The next part of a step has ended. Parts are differences of whole microseconds, so they add up."""
        times = record["times"]
        times.append(max(0, self.microseconds(at) - record["t"] - sum(times)))

    def _write_unfinished(self, record: dict[str, Any]) -> None:
        record["times"] += [0] * (len(PARTS) - len(record["times"]))
        self.writer.write(record)

    def _number(self, seq: Sequence) -> int:
        number = self._numbers.get(seq)
        if number is None:
            number, self._num_seqs = self._num_seqs, self._num_seqs + 1
            self._numbers[seq] = number
            request, _ = self._requests.get(seq.request_id, (-1, None))
            self._fresh.append((number, request, seq.seq_id))
        return number

    def _add_rows(self, record: dict[str, Any], output: SchedulerOutput) -> list[int] | None:
        """Who computes what. Returns which rows decode, None for all of them: most steps."""
        seqs, nums = output.scheduled_seqs, output.num_scheduled_tokens
        only_decodes = output.total_num_scheduled_tokens == len(seqs) and not (output.num_prompt_tokens or output.forks)
        if only_decodes and seqs == self._decoding:  # compared by identity, without a call for each
            return None
        prefill, found, decoding, decode_rows = [], [], [], []
        back = {*self._resumed, *(child for _, child in self._branched)}  # these have what they have found
        for row, (seq, num_tokens) in enumerate(zip(seqs, nums, strict=True)):
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
            record["prefill"] = prefill
        if found:
            record["found"] = found
        if decoding != self._decoding:
            record["decode"] = [self._number(seq) for seq in decoding]
            self._decoding = decoding
        if output.forks:
            record["forks"] = [(self._number(parent), self._number(child)) for parent, child in output.forks]
            self._moved += [child for _, child in output.forks]
        return None if only_decodes else decode_rows

    def _add_tables(self, record: dict[str, Any], output: SchedulerOutput) -> None:
        """Block tables that differ from what the record before left."""
        tables = []
        for seq in dict.fromkeys([*self._gone, *self._moved, *output.grown_seqs]):
            before, after = self._tables.get(seq, []), seq.block_ids if seq.status is RUNNING else []
            place = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
            if place is None:
                place = min(len(before), len(after))
                if len(before) == len(after):
                    self._tables.setdefault(seq, list(after))
                    continue
            tables.append((self._number(seq), place, after[place:]))
            self._tables[seq] = list(after)
        if tables:
            record["tables"] = tables
        for seq in dict.fromkeys([*self._gone, *self._moved]):
            if seq.status is not RUNNING:
                self._tables.pop(seq, None)  # should it come back, what it then finds is news
        for seq in dict.fromkeys(self._gone):
            self._numbers.pop(seq, None)
        self._gone, self._moved = [], []
