"""Reads records in order and knows the whole state at each of them: whose blocks, what waits, what can be found.

A record says what changed; this says what is. The page, the exporter and the tests use it.

vLLM: none
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from folovllm.tracing.schema import Arrival, StepRecord, TraceFormatError

WAITING, RUNNING, PREEMPTED, SWAPPED, ENDED = "waiting", "running", "preempted", "swapped", "ended"


@dataclass(slots=True)
class SeqState:
    """One sequence, as the records so far left it."""

    number: int
    request: int
    id: str
    status: str = WAITING
    computed: int = 0
    """Tokens whose keys and values are there."""
    table: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Row:
    """What one sequence does in a step."""

    seq: SeqState
    kind: str
    """"prefill", "decode" or "fork": it computes nothing and draws from its parent's logits."""
    start: int
    num_tokens: int
    token: int | None = None
    drafted: int = 0
    """Draft tokens that it verifies besides num_tokens; the accepted ones are among num_tokens."""
    later: list[int] = field(default_factory=list)
    """Tokens behind `token`."""

    @property
    def num_drawn(self) -> int:
        return (self.token is not None) + len(self.later)


class Replay:
    """Feed it the steps; between two calls its attributes are the state."""

    def __init__(self) -> None:
        self.requests: dict[int, Arrival] = {}
        self.seqs: dict[int, SeqState] = {}
        self.findable: set[int] = set()
        self._decoding: list[int] = []

    def run(self, steps: list[StepRecord]) -> Iterator[tuple[StepRecord, list[Row]]]:
        """Each step with its rows; the state is then that of the step while it computes.

        Raises:
            TraceFormatError: a record names what no record before it has.
        """
        for record in steps:
            try:
                rows = self.begin(record)
            except (KeyError, ValueError) as error:
                raise TraceFormatError(
                    f"step {record.step}: does not follow from the steps before it: {error!r}"
                ) from None
            yield record, rows
            try:
                self.finish(record, rows)
            except KeyError as error:
                raise TraceFormatError(
                    f"step {record.step}: names a sequence that no record before has: {error}"
                ) from None

    def begin(self, record: StepRecord) -> list[Row]:
        """Apply what was decided before the step computes."""
        self.requests |= {arrival.request: arrival for arrival in record.arrived}
        for number, request, seq_id in record.seqs:
            self.seqs[number] = SeqState(number, request, seq_id)
        if record.restarted:
            for seq in self.seqs.values():
                if seq.status in (RUNNING, SWAPPED):
                    seq.status = PREEMPTED
                seq.table, seq.computed = [], 0
            self._decoding = []
        if record.restarted or record.forgotten:
            self.findable.clear()
        self.findable.update(record.kept)
        self.findable.difference_update(record.evicted)
        for number, _ in record.left:
            self.seqs[number].status = ENDED
        for number, how in record.preempted:
            seq = self.seqs[number]
            seq.status = SWAPPED if how == "swap" else PREEMPTED
            if how == "recompute":
                seq.computed = 0
        for number in record.resumed:
            self.seqs[number].status = RUNNING
        for number, place, blocks in record.tables:
            self.seqs[number].table[place:] = blocks
        for parent, child in record.branched:
            self.seqs[child].status, self.seqs[child].computed = RUNNING, self.seqs[parent].computed
        for number, num_tokens in record.found:
            self.seqs[number].computed = num_tokens
        return self._rows(record)

    def _rows(self, record: StepRecord) -> list[Row]:
        rows = []
        if record.decode is not None:
            self._decoding = record.decode
        tokens = record.tokens or [None] * len(self._decoding)
        first = dict(record.first)
        for number, token in zip(self._decoding, tokens, strict=True):
            seq = self.seqs[number]
            rows.append(Row(seq, "decode", seq.computed, 1, token))
        for number, start, num_tokens in record.prefill:
            rows.append(Row(self.seqs[number], "prefill", start, num_tokens, first.get(number)))
        for _, child in record.forks:
            seq = self.seqs[child]
            rows.append(Row(seq, "fork", seq.computed, 0, first.get(child)))
        drafted = dict(record.drafted)
        row_of = {row.seq.number: row for row in rows} if drafted else {}
        for number, token in record.later:
            row_of[number].later.append(token)
            row_of[number].num_tokens += 1
        for row in rows:
            row.seq.status = RUNNING
            row.drafted = drafted.get(row.seq.number, 0)
        return rows

    def finish(self, record: StepRecord, rows: list[Row]) -> None:
        """Apply what came of the step."""
        for row in rows:
            row.seq.computed = row.start + row.num_tokens
        for parent, child in record.forks:
            self.seqs[child].computed = self.prompt_tokens_of(parent)
        for number, _ in record.ended:
            self.seqs[number].status = ENDED

    def prompt_tokens_of(self, seq: int) -> int:
        """How many prompt tokens a sequence has; what it has computed where its request was never seen."""
        arrival = self.requests.get(self.seqs[seq].request)
        return self.seqs[seq].computed if arrival is None else arrival.prompt_tokens

    def owners(self) -> Counter[int]:
        """How many block tables name each block that is in use."""
        return Counter(block for seq in self.seqs.values() for block in seq.table)
