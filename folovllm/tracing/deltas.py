"""Delta encoding of a trace: a step's record has only the fields that differ from the record before.

Requests and sequences get their numbers here. State is kept of live sequences: the block table of the last record, and
which of them decoded. Most steps change nothing, and a few comparisons show that.

vLLM: none
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from folovllm.core.group_tables import held_blocks
from folovllm.core.observer import EngineObserver
from folovllm.core.scheduler_output import Drafts, SchedulerOutput
from folovllm.request import Request, Sequence, SequenceStatus
from folovllm.tracing.schema import UNTOLD, Arrival

PROMPT_CHARACTERS, PROMPT_IDS = 2000, 500
CONTEXT_TOKENS = 5  # as many of the prompt as the detokenizer reads before a token
RUNNING = SequenceStatus.RUNNING

_REASONS = {
    SequenceStatus.FINISHED_STOPPED: "stop",
    SequenceStatus.FINISHED_LENGTH_CAPPED: "length",
    SequenceStatus.FINISHED_ABORTED: "abort",
    SequenceStatus.FINISHED_IGNORED: "ignored",
}

Fields = dict[str, Any]
"""Fields of a record, by their names in schema.py."""


class DeltaEncoder(EngineObserver):
    """Collects events as they happen; take() gives a step's record the fields for them.

    now: the time in microseconds, as the record has it.
    have_windows: a table may lose blocks whenever room for its sequence is asked for, be it in the step or not.
    """

    def __init__(self, now: Callable[[], int], *, with_texts: bool, have_windows: bool) -> None:
        self._now, self._with_texts, self._have_windows = now, with_texts, have_windows
        self._num_requests = self._num_seqs = 0
        self._requests: dict[str, tuple[int, Request]] = {}  # by id, of the unfinished ones
        self._numbers: dict[Sequence, int] = {}
        self._tables: dict[Sequence, list[int]] = {}  # as the last record left them
        self._decoding: list[Sequence] = []
        self._decoders: set[Sequence] = set()  # the same, but for those preempted since
        self.events: Fields = {}
        """Events since the last record was begun; empty as a rule."""
        self._gone: list[Sequence] = []
        self._moved: list[Sequence] = []

    def arrived(self, request: Request) -> None:
        params, prompt, ids = request.sampling_params, request.prompt, request.prompt_token_ids
        number, self._num_requests = self._num_requests, self._num_requests + 1
        self._requests[request.request_id] = number, request
        arrival = Arrival(
            request=number,
            id=request.request_id,
            t=self._now(),
            prompt_tokens=len(ids),
            prompt=None,
            max_tokens=params.max_tokens,
            num_seqs=params.best_of,
            priority=request.priority,
        )
        if self._with_texts:
            arrival.prompt = None if prompt is None else prompt[:PROMPT_CHARACTERS]
            arrival.prompt_ids = ids[:PROMPT_IDS] if prompt is None else []
            arrival.context = ids[-CONTEXT_TOKENS:]
        self._add_event("arrived", asdict(arrival))
        self._number(request.get_seqs()[0])

    def preempted(self, seqs: list[Sequence]) -> None:
        for seq in seqs:
            how = "swap" if seq.status is SequenceStatus.SWAPPED else "recompute"
            self._add_event("preempted", (self._number(seq), how))
            self._moved.append(seq)
            self._decoders.discard(seq)

    def resumed(self, seqs: list[Sequence]) -> None:
        for seq in seqs:
            self._add_event("resumed", self._number(seq))
            self._moved.append(seq)

    def forked(self, parent: Sequence, child: Sequence) -> None:
        self._add_event("branched", (self._number(parent), self._number(child)))
        self._moved.append(child)

    def block_cached(self, block_id: int) -> None:
        self._add_event("kept", block_id)

    def block_evicted(self, block_id: int) -> None:
        self._add_event("evicted", block_id)

    def cache_reset(self) -> None:
        self.events.pop("kept", None)
        self.events.pop("evicted", None)
        self.events["forgotten"] = True

    def ended(self, seq: Sequence) -> None:
        self._add_event("ended", (self._number(seq), _REASONS[seq.status]))
        self._gone.append(seq)
        known = self._requests.get(seq.request_id)
        if known is not None and known[1].is_finished():
            del self._requests[seq.request_id]

    def started_over(self) -> None:
        self._tables, self._decoding, self._decoders, self._moved = {}, [], set(), []
        for name in ("preempted", "resumed", "branched", "kept", "evicted", "forgotten"):
            self.events.pop(name, None)
        self.events["restarted"] = True

    def has_changes(self, output: SchedulerOutput) -> bool:
        """If not, the same sequences decode as in the step before, in the same blocks."""
        return bool(self._have_windows or self.events or output.grown_seqs or self._rows_differ(output))

    def _rows_differ(self, output: SchedulerOutput) -> bool:
        """Whether other sequences compute, or other than their newest token, than in the step before."""
        return bool(
            self._gone
            or self._moved
            or output.forks
            or output.num_prompt_tokens
            or output.total_num_scheduled_tokens != len(output.scheduled_seqs)
            or output.scheduled_seqs != self._decoding  # by identity, without a call for each
        )

    def take(self, output: SchedulerOutput) -> tuple[Fields, list[int] | None]:
        """What the record of this step says, and which of its rows decode (None: all)."""
        fields: Fields = {}
        # Where sequences have got blocks and no more, the rows are the same.
        decode_rows = self._add_rows(fields, output) if self._rows_differ(output) else None
        self._add_tables(fields, output)
        for name, pairs in (
            ("copies", output.blocks_to_copy),
            ("swapped_out", output.blocks_to_swap_out),
            ("swapped_in", output.blocks_to_swap_in),
        ):
            if pairs:
                fields[name] = pairs
        if "ended" in self.events:
            self.events["left"] = self.events.pop("ended")  # before this step
        fields |= self.events
        self.events = {}
        return fields, None if decode_rows is None or len(decode_rows) == len(output.rows) else decode_rows

    def take_ended(self) -> Fields:
        """Sequences that ended with the step that is finished."""
        return {"ended": self.events.pop("ended")} if "ended" in self.events else {}

    def first_tokens(self, output: SchedulerOutput, token_ids: list[int | None], decode_rows: list[int]) -> Fields:
        """Tokens of the rows that do not decode."""
        decoding, first = set(decode_rows), []
        for row, (seq, token_id) in enumerate(zip(output.rows, token_ids, strict=True)):
            if row not in decoding and token_id is not None:
                first.append((self._number(seq), token_id if self._with_texts else UNTOLD))
        return {"first": first} if first else {}

    def draft_tokens(self, output: SchedulerOutput, lengths: dict[str, int], drafts: Drafts) -> Fields:
        """Of a step with draft tokens, all of whose tokens have come. lengths: of its sequences, when it was
        scheduled."""
        drafted, later = [], []
        for seq in output.scheduled_seqs:
            if (draft := drafts.get(seq.seq_id)) and draft.draft_token_ids:
                number = self._number(seq)
                drafted.append((number, len(draft.draft_token_ids)))
                tokens = seq.get_token_ids()[lengths[seq.seq_id] + 1 :]
                later += [(number, token_id if self._with_texts else UNTOLD) for token_id in tokens]
            if seq.seq_id in lengths:
                self._moved.append(seq)  # blocks that only draft tokens needed were given back
        fields: Fields = {"drafted": drafted} if drafted else {}
        return fields | {"later": later} if later else fields

    def _add_event(self, name: str, what: Any) -> None:
        self.events.setdefault(name, []).append(what)

    def _number(self, seq: Sequence) -> int:
        number = self._numbers.get(seq)
        if number is None:
            number, self._num_seqs = self._num_seqs, self._num_seqs + 1
            self._numbers[seq] = number
            request, _ = self._requests.get(seq.request_id, (-1, None))
            self._add_event("seqs", (number, request, seq.seq_id))
        return number

    def _add_rows(self, fields: Fields, output: SchedulerOutput) -> list[int]:
        """What each row computes. Returns which rows decode."""
        prefill, found, decoding, decode_rows = [], [], [], []
        # Their cached tokens are known.
        back = {*self.events.get("resumed", ()), *(child for _, child in self.events.get("branched", ()))}
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
            fields["prefill"] = prefill
        if found:
            fields["found"] = found
        if decoding != self._decoding:
            fields["decode"] = [self._number(seq) for seq in decoding]
            self._decoding, self._decoders = decoding, set(decoding)
        if output.forks:
            fields["forks"] = [(self._number(parent), self._number(child)) for parent, child in output.forks]
            self._moved += [child for _, child in output.forks]
        return decode_rows

    def _add_tables(self, fields: Fields, output: SchedulerOutput) -> None:
        """Block tables that differ from what the record before left."""
        tables = []
        losing = [*self._tables] if self._have_windows else []
        for seq in dict.fromkeys([*self._gone, *self._moved, *output.grown_seqs, *losing]):
            before = self._tables.setdefault(seq, [])
            after = held_blocks(seq) if seq.status is RUNNING else []
            place = len(before)
            if after[:place] != before:  # else it has grown at its end, if at all
                place = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(after))
            elif len(after) == place:
                continue
            added = after[place:]
            tables.append((self._number(seq), place, added))
            before[place:] = added
        if tables:
            fields["tables"] = tables
        for seq in dict.fromkeys([*self._gone, *self._moved]):
            if seq.status is not RUNNING:
                self._tables.pop(seq, None)  # should it come back, all of its table is new
        for seq in dict.fromkeys(self._gone):
            self._numbers.pop(seq, None)
            self._decoders.discard(seq)
        self._gone, self._moved = [], []
