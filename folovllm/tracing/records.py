"""The file of a trace, and its reader: gzip, in it JSON Lines: a header, one Step a step, an end.

    {"type":"header","version":4, ...}
    {"type":"step","step":1,"t":1764300000000210,"times":[210,4130,0,38,160],"seq_ids":["a-0"],...}
    {"type":"end","t":1764300000099120, ...}                  only where the trace was closed

A field that is empty or 0 is left out. A reader refuses what these classes do not have.

vLLM: none
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from folovllm.core.step_record import StepRecord
from folovllm.request import Request, SequenceStatus
from folovllm.utils.checks import describe
from folovllm.utils.named_files import LARGEST, parse_json, read_file

VERSION = 4

PARTS = ("schedule", "launch", "wait", "update", "output")
SWAPPED = SequenceStatus.SWAPPED

UNTOLD = -1
"""In the place of a token id, where Header.texts is false."""

T = TypeVar("T")


class TraceFormatError(ValueError):
    """A trace does not say what it must; the text names line and field."""


@dataclass(slots=True)
class Header:
    """The first line: what made the trace, and the limits that its numbers have to be read against."""

    version: int
    made_by: str
    clock: str
    """"real", or "simulated": the times are a cost model's."""
    model: str
    device: str
    dtype: str
    num_blocks: int
    """Blocks 1 .. num_blocks; block 0 is padding."""
    block_size: int
    num_swap_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    prefix_caching: bool
    chunked_prefill: bool
    policy: str
    preemption_mode: str
    tokenizer: str | None = None
    """Where to find the tokenizer that decodes token ids; None: where the model is."""
    texts: bool = True
    """False: no prompts, and of a token only that it was drawn."""


PROMPT_CHARACTERS, PROMPT_IDS = 2000, 500  # that an arrival has at most
CONTEXT_TOKENS = 5  # as many of the prompt as the detokenizer reads before a token


@dataclass(slots=True)
class Arrival:
    """A request that was added: when (t, as Step.t), and how many sequences it asks for (num_seqs)."""

    id: str
    t: int
    prompt_tokens: int
    max_tokens: int | None
    num_seqs: int
    priority: int = 0
    prompt: str | None = None
    """The beginning of its text; where it came as token ids, prompt_ids has the first of them."""
    prompt_ids: list[int] = field(default_factory=list)
    context: list[int] = field(default_factory=list)
    """The last of its token ids: the text of the first token drawn can depend on them."""

    @classmethod
    def of(cls, request: Request) -> Arrival:
        prompt, ids, params = request.prompt, request.prompt_token_ids, request.sampling_params
        t, text = int(request.arrival_time * 1e6), None if prompt is None else prompt[:PROMPT_CHARACTERS]
        return cls(
            request.request_id, t, len(ids), params.max_tokens, params.best_of, request.priority, text,
            list(ids[:PROMPT_IDS]) if prompt is None else [], list(ids[-CONTEXT_TOKENS:]),
        )  # fmt: skip


@dataclass(slots=True)
class Step:
    """Sequences go by their ids, blocks by their numbers. Row i of the lists from seq_ids to num_prompt_tokens, and of
    token_ids, is one sequence that takes part; children of `forks` are the last, and compute no token."""

    step: int = 0
    """Its number, from 1; in the order in which steps end."""
    t: int = 0
    """When scheduling began, in microseconds since 1970 (of the engine's clock, where that is another)."""
    times: list[int] = field(default_factory=list)
    """Microseconds of PARTS, one behind the other. wait: from the launch to the tokens; where the engine runs ahead,
    the next step is scheduled and launched meanwhile."""
    seq_ids: list[str] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    """Tokens whose keys and values were there before the step."""
    num_scheduled_tokens: list[int] = field(default_factory=list)
    num_prompt_tokens: list[int] = field(default_factory=list)
    token_ids: list[int | None] = field(default_factory=list)
    """Drawn by each row; None where none was (a beam search chooses later)."""
    drafted: dict[str, int] = field(default_factory=dict)
    """How many draft tokens a sequence verified beside num_scheduled_tokens."""
    later: dict[str, list[int]] = field(default_factory=dict)
    """Tokens drawn behind the first, one for each draft token that was accepted."""
    tables: dict[str, list[int]] = field(default_factory=dict)
    """Block tables that are new or changed; those of several groups of layers come one after the other."""
    arrived: list[Arrival] = field(default_factory=list)
    """Since the record before; so are all that follow but for what ended."""
    admitted: list[tuple[str, int]] = field(default_factory=list)
    """(sequence, tokens that a cache or a sibling had computed of it) of those that waited and were let in."""
    preempted: list[tuple[str, str]] = field(default_factory=list)
    """(sequence, "recompute" or "swap"): lost its blocks on the device."""
    resumed: list[str] = field(default_factory=list)
    """Swapped sequences that came back."""
    branched: list[tuple[str, str]] = field(default_factory=list)
    """(parent, child): a beam that the search forked; it shares all that its parent had."""
    forks: list[tuple[str, str]] = field(default_factory=list)
    """(parent, child): the child draws its first token from its parent's logits."""
    copies: list[tuple[int, int]] = field(default_factory=list)
    """(from, to): blocks copied before the step computes (copy-on-write)."""
    swapped_out: list[tuple[int, int]] = field(default_factory=list)
    swapped_in: list[tuple[int, int]] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)
    """Blocks that can be found by their content from here on."""
    removed: list[int] = field(default_factory=list)
    """Blocks that cannot be found any more, for they were handed out."""
    cleared: bool = False
    """The prefix cache was reset: nothing that was stored before can be found."""
    finished: list[str] = field(default_factory=list)
    """Had ended before the step. Those that neither this record nor one before has in `ended` were aborted."""
    ended: list[tuple[str, str]] = field(default_factory=list)
    """(sequence, reason) of those that ended by this step, or before it by a stop string in their text, which is found
    when a step is over; "ignored": it is not returned."""
    failed: bool = False
    """The step raised and brought nothing. No sequence has blocks, none can be found, all requests wait."""
    free: int = 0
    """Blocks, findable ones included, once the step was scheduled; findable: how many can be found, free or not."""
    findable: int = 0
    waiting: int = 0
    """Requests that wait, once the step was scheduled; running, swapped: likewise."""
    running: int = 0
    swapped: int = 0

    @classmethod
    def of(cls, number: int, record: StepRecord) -> Step:
        """The plain record of a step that is over."""
        output, at = record.output, [int(seconds * 1e6 + 0.5) for seconds in record.times]
        at += at[-1:] * (1 + len(PARTS) - len(at))  # parts that it did not reach took no time
        rows, copies = output.rows, (output.blocks_to_copy, output.blocks_to_swap_out, output.blocks_to_swap_in)
        step = cls(
            number, at[0], [b - a for a, b in pairwise(at)], [seq.seq_id for seq in rows], record.num_computed_tokens,
            output.num_scheduled_tokens + [0] * len(output.forks), [seq.data.num_prompt_tokens for seq in rows],
            list(record.token_ids or ()), free=record.num_free, findable=record.num_cached, waiting=record.num_waiting,
            running=record.num_running, swapped=record.num_swapped, finished=output.finished_seq_ids,
            failed=record.token_ids is None, tables={seq.seq_id: table for seq, table in record.tables.items()},
        )  # fmt: skip
        step.copies, step.swapped_out, step.swapped_in = copies
        step._add_events(record)
        for row, seq in enumerate(output.scheduled_seqs if record.drafts else ()):
            draft = record.drafts.get(seq.seq_id)
            if draft is not None and draft.draft_token_ids:
                step.drafted[seq.seq_id] = len(draft.draft_token_ids)
                length = step.num_computed_tokens[row] + step.num_scheduled_tokens[row]
                step.later[seq.seq_id] = seq.get_token_ids()[length + 1 :]
        return step

    def _add_events(self, record: StepRecord) -> None:
        self.arrived = [Arrival.of(request) for request in record.arrived]
        self.admitted = [(seq.seq_id, found) for seq, found in record.admitted]
        self.preempted = [(seq.seq_id, "swap" if how is SWAPPED else "recompute") for seq, how in record.preempted]
        self.resumed = [seq.seq_id for seq in record.resumed]
        self.branched = [(parent.seq_id, child.seq_id) for parent, child in record.branched]
        self.forks = [(parent.seq_id, child.seq_id) for parent, child in record.output.forks]
        self.ended = ended_of(record)
        for event, block_id in record.block_events:
            if event == "cleared":
                self.cleared = True
            else:
                (self.stored if event == "stored" else self.removed).append(block_id)


def ended_of(record: StepRecord) -> list[tuple[str, str]]:
    return [(seq.seq_id, SequenceStatus.finish_reason(how) or "ignored") for seq, how in record.ended]


@dataclass(slots=True)
class End:
    """The last line of a trace that was closed. finished, ended: since the last step, as there."""

    t: int
    finished: list[str] = field(default_factory=list)
    ended: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Trace:
    """A whole trace. `end` is None where it was not closed, `is_torn` where its last line was cut off."""

    name: str
    header: Header
    steps: list[Step] = field(default_factory=list)
    end: End | None = None
    is_torn: bool = False

    @property
    def origin(self) -> int:
        """The first moment that it knows of, as Step.t."""
        return min([step.t for step in self.steps[:1]] + [each.t for step in self.steps[:1] for each in step.arrived])

    def walk(self) -> Iterator[tuple[int, Step, dict[str, int]]]:
        """The place of each step, its record, and the numbers of the requests so far by their ids: 0 for the first that
        arrived. An id may come again, and then has another number."""
        numbers: dict[str, int] = {}
        count = 0
        for place, record in enumerate(self.steps):
            for arrival in record.arrived:
                numbers[arrival.id], count = count, count + 1
            yield place, record, numbers


def endings(trace: Trace) -> Iterator[list[tuple[int, str, str, bool]]]:
    """Of each step what ended by it or before it: the number of the request, the sequence, why, and whether before. An
    id may come again at once: then its end and the new arrival are in one record."""
    gone, told, numbers = set[tuple[int, str]](), set[tuple[int, str]](), dict[str, int]()
    count = 0
    for record in trace.steps:
        lives: dict[str, list[int]] = {}
        for arrival in record.arrived:
            lives.setdefault(arrival.id, [numbers[arrival.id]] if arrival.id in numbers else []).append(count)
            numbers[arrival.id], count = count, count + 1
        found, ended = list[tuple[int, str, str, bool]](), list(record.ended)
        for seq_id in record.finished:
            request_id = seq_id.rpartition("-")[0]
            of_id = lives.get(request_id, [numbers.get(request_id, -1)])
            name = next((number for number in of_id if (number, seq_id) not in gone), of_id[-1]), seq_id
            gone.add(name)
            if name not in told:
                why = next((each for each in ended if each[0] == seq_id), None)
                if why is not None:
                    ended.remove(why)
                found.append((*name, "abort" if why is None else why[1], True))
        found += [(numbers.get(seq_id.rpartition("-")[0], -1), seq_id, why, False) for seq_id, why in ended]
        told.update((number, seq_id) for number, seq_id, *_ in found)
        yield found


class Row(NamedTuple):
    """What one sequence does in a step: num_tokens counts the draft tokens that were accepted."""

    seq_id: str
    kind: str
    """"prefill", "decode" or "fork": it computes nothing and draws from its parent's logits."""
    start: int
    num_tokens: int
    token_ids: list[int]
    """That it has drawn: none, one, or several with draft tokens."""

    @property
    def request_id(self) -> str:
        return self.seq_id.rpartition("-")[0]


def rows_of(record: Step) -> Iterator[Row]:
    tokens = record.token_ids or [None] * len(record.seq_ids)
    for seq_id, start, num, prompt, token in zip(
        record.seq_ids, record.num_computed_tokens, record.num_scheduled_tokens, record.num_prompt_tokens, tokens,
        strict=True,
    ):  # fmt: skip
        later = record.later.get(seq_id, [])
        kind = "fork" if num == 0 else "decode" if num == 1 and start >= prompt else "prefill"
        yield Row(seq_id, kind, start, num + len(later), [] if token is None else [token, *later])


def num_drawn(record: Step) -> int:
    return sum(token is not None for token in record.token_ids) + sum(map(len, record.later.values()))


def blocks_of(trace: Trace) -> Iterator[tuple[Step, dict[str, list[int]], set[int]]]:
    """Each step with the block tables of all sequences, and the blocks that can be found, while it computes."""
    tables: dict[str, list[int]] = {}
    findable: set[int] = set()
    for record in trace.steps:
        if record.cleared:
            findable.clear()
        findable.update(record.stored)
        findable.difference_update(record.removed)
        for seq_id in (*record.finished, *(seq_id for seq_id, _ in record.preempted)):
            tables.pop(seq_id, None)
        tables |= record.tables
        yield record, tables, findable
        if record.failed:
            tables.clear()
            findable.clear()


def read_trace(path: str | Path) -> Trace:
    """A last line that is cut off is passed over: the process that wrote it was ended in the middle.

    Raises:
        TraceFormatError: it is no trace, or not of this version.
        ValueError: the file cannot be read.
    """
    path = Path(path)
    try:
        data = zlib.decompressobj(wbits=31).decompress(read_file("trace", path), LARGEST)
    except zlib.error as error:
        raise TraceFormatError(f"{path}: is no gzip file ({error}): is this a trace?") from error
    *lines, rest = data.split(b"\n")
    trace: Trace | None = None
    for number, line in enumerate(lines, start=1):
        where = f"{path}: line {number}"
        try:
            fields = parse_json(line)
        except ValueError as error:
            raise TraceFormatError(f"{where}: {error}: is this a trace?") from error
        kind = fields.pop("type", None) if isinstance(fields, dict) else None
        if (kind == "header") != (trace is None) or kind not in ("header", "step", "end"):
            raise TraceFormatError(f"{where}: must be a header, and behind it steps and an end, got {describe(kind)}")
        if trace is None:
            if fields.get("version") != VERSION:
                raise TraceFormatError(
                    f"{where}: version must be {VERSION}, got {describe(fields.get('version'))}; read it with the "
                    "release that wrote it"
                )
            trace = Trace(path.name, _filled(Header, fields, where))
        elif kind == "end":
            trace.end = _filled(End, fields, where)
        else:
            trace.steps.append(_step(fields, where))
    if trace is None:
        raise TraceFormatError(f"{path}: has no header: is this a trace?")
    trace.is_torn = bool(rest)
    return trace


def _step(fields: dict[str, Any], where: str) -> Step:
    record = _filled(Step, fields, where)
    record.arrived = [_filled(Arrival, arrival, f"{where}: arrived") for arrival in record.arrived]
    columns = (record.num_computed_tokens, record.num_scheduled_tokens, record.num_prompt_tokens)
    rows = len(record.seq_ids)
    if any(len(column) != rows for column in columns) or len(record.token_ids) not in (0, rows):
        raise TraceFormatError(f"{where}: its lists must have {rows} rows, as seq_ids")
    if len(record.times) != len(PARTS):
        raise TraceFormatError(f"{where}: times must have {len(PARTS)} numbers, got {describe(record.times)}")
    return record


def _filled(kind: type[T], fields: Any, where: str) -> T:
    """An object of a dataclass; whether lists have what they should is not looked at."""
    if not isinstance(fields, dict):
        raise TraceFormatError(f"{where}: must be an object, got {describe(fields)}")
    for name, hint in get_type_hints(kind).items():
        kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        if name in fields and not isinstance(fields[name], tuple(get_origin(each) or each for each in kinds)):
            raise TraceFormatError(f"{where}: {name} must be {hint}, got {describe(fields[name])}")
    try:
        return kind(**fields)
    except TypeError as error:  # a field that is missing, or unknown
        raise TraceFormatError(f"{where}: {str(error).replace('__init__() ', '')}") from error
