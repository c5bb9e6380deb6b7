"""Reads a trace back, line by line, each one checked.

A last line that is cut off is passed over: the process that wrote it was ended in the middle.

vLLM: none
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from folovllm.tracing.schema import End, Header, Record, StepRecord, TraceFormatError, parse_record
from folovllm.utils.named_files import parse_json, read_file


@dataclass
class Trace:
    """A whole trace. `end` is None where it was not closed, `is_torn` where its last line was cut off."""

    name: str
    header: Header
    steps: list[StepRecord] = field(default_factory=list)
    end: End | None = None
    is_torn: bool = False


def read_trace(path: str | Path) -> Trace:
    """Raises:
    TraceFormatError: a line is not what schema.py says.
    ValueError: the file cannot be read.
    """
    path = Path(path)
    trace: Trace | None = None
    records = read_records(path)
    try:
        while (record := next(records, None)) is not None:
            if isinstance(record, Header):
                if trace is not None:
                    raise TraceFormatError(f"{path}: a second header; a file holds one trace")
                trace = Trace(path.name, record)
            elif trace is None:
                raise TraceFormatError(f"{path}: line 1 must be a header: is this a trace?")
            elif isinstance(record, End):
                trace.end = record
            else:
                trace.steps.append(record)
    except TornLine:
        if trace is not None:
            trace.is_torn = True
    if trace is None:
        raise TraceFormatError(f"{path}: has no header: is this a trace?")
    return trace


class TornLine(Exception):  # noqa: N818  named after what happened
    """The last line of the file was cut off."""


def read_records(path: Path) -> Iterator[Record]:
    """The records in order. Raises TornLine behind the last whole one if a part of a line follows it."""
    for number, line in enumerate(BytesIO(read_file("trace", path)), start=1):
        where = f"{path}: line {number}"
        if not line.endswith(b"\n"):
            raise TornLine
        try:
            data = parse_json(line)
        except ValueError as error:
            raise TraceFormatError(f"{where}: {error}: is this a trace?") from error
        yield parse_record(data, where)
