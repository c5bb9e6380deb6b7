"""Reads the file of a trace, and says what its steps did: rows, drawn tokens, block tables.

vLLM: none
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from folovllm.tracing.records import PARTS, VERSION, Arrival, End, Header, Step
from folovllm.utils.checks import describe
from folovllm.utils.named_files import LARGEST, parse_json, read_file

T = TypeVar("T")


class TraceFormatError(ValueError):
    """A trace does not say what it must; the text names line and field."""


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
