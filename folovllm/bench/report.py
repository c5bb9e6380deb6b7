"""The result of a benchmark: rows of plain numbers, and everything needed to judge and repeat them.

A number that was measured several times is a median in its row; `samples` keeps all of them. The same Report becomes a
table on the screen and a JSON file that the documentation's tables are made from; no figure passes through a human
hand.

vLLM: benchmarks/lib/utils.py
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from folovllm.entrypoints.cli.machine import hardware, versions
from folovllm.utils.named_files import writing

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from folovllm.tracing.writer import TraceWriter

Row = dict[str, Any]
Samples = Mapping[str, Sequence[float]]
"""Of one row: the column -> what each round measured, in the column's unit, in order."""
Line = tuple[Row, Samples]
"""A row's facts, and its samples."""


@dataclass
class Report:
    """`columns` names the keys of each row, in the order to show them; a key says its unit (ttft_ms).

    `samples` are as many as there are rows. `seed` and `other_load` are None where nothing is drawn, and where no look
    was taken. `details` go into the JSON and not into the table: options of the engines, what a picture is drawn from.
    """

    name: str
    title: str
    command: str
    columns: list[str]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=versions)
    hardware: dict[str, Any] = field(default_factory=hardware)
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())
    details: dict[str, Any] = field(default_factory=dict)
    samples: Sequence[Samples] = ()
    seed: int | None = None
    other_load: dict[str, Any] | None = None
    """As Neighbours.look() has it."""
    traces: Sequence[TraceWriter] = ()
    """Written beside the result; whether all of them are whole is asked once that was shown."""

    @classmethod
    def of(
        cls, args: argparse.Namespace, title: str, columns: list[str], lines: Sequence[Line], notes: list[str],
        **more: Any,
    ) -> Report:  # fmt: skip
        """A row for each of `lines`: what is known of it, else the median of its rounds, else None."""
        rows = [
            {column: facts[column] if column in facts else median_of(samples.get(column)) for column in columns}
            for facts, samples in lines
        ]
        kept = [{key: values for key, values in samples.items() if key in columns} for _, samples in lines]
        return cls(args.bench, title, command_line(args), columns, rows, notes, samples=kept, **more)

    def as_dict(self) -> dict[str, Any]:
        """Every benchmark's JSON has these keys. `samples` holds a dict for each row."""
        keys = ("name", "title", "command", "seed", "versions", "hardware", "date", "columns", "rows")
        samples = [
            {key: list(values) for key, values in of_row.items()} for of_row in self.samples or [{}] * len(self.rows)
        ]
        return {key: getattr(self, key) for key in keys} | {
            "samples": samples,
            "other_load": self.other_load,
            "notes": self.notes,
            "details": self.details,
        }

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def save(self, path: Path) -> None:
        """Raises ValueError: not all of it could be written."""
        with writing("json", path) as file:
            file.write(self.to_json() + "\n")

    def show(self, console: Console) -> None:
        """The table, between what is common to its rows and the notes."""
        from rich.text import Text

        console.print(Text(self.title, style="bold"))
        shared = [key for key in self.columns if self._is_shared(key)]
        if shared:
            console.print(Text(", ".join(f"{_heading(key)} {format_number(self.rows[0][key])}" for key in shared)))
        console.print()
        console.print(self.render())
        console.print()
        for note in [*self.notes, *self._describe_spread()]:
            console.print(Text(note, style="dim"))
        if self.other_load is not None and self.other_load["is_busy"]:
            from folovllm.bench.neighbours import describe

            console.print(Text(describe(self.other_load), style="bold yellow"))

    def _describe_spread(self) -> list[str]:
        worst: dict[str, float] = {}
        for key, values in ((key, values) for of_row in self.samples for key, values in of_row.items()):
            if len(values) > 1:
                middle = abs(statistics.median(values))
                worst[key] = max(worst.get(key, 0.0), (max(values) - min(values)) / middle if middle else 0.0)
        if not worst:
            return []
        text = ", ".join(f"{_heading(key)} {share:.0%}" for key, share in worst.items())
        return [f"Spread of the rounds, (largest - smallest) / median, of the row where it is widest: {text}."]

    def render(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        def cell(key: str, row: Row) -> Text:
            return Text(format_number(row[key]))

        # What is the same in every row is above the table, which shows what differs.
        shown = [key for key in self.columns if not self._is_shared(key)]
        table = Table(box=None, pad_edge=False)
        if len(self.rows) < len(shown):  # taller than wide: it then fits a terminal of 80 columns
            table.add_column(_heading(shown[0]))
            for row in self.rows:
                table.add_column(cell(shown[0], row), justify="right")
            for key in shown[1:]:
                table.add_row(_heading(key), *(cell(key, row) for row in self.rows))
        else:
            for key in shown:
                numeric = all(isinstance(row[key], int | float | None) for row in self.rows)
                table.add_column(_heading(key), justify="right" if numeric else "left")
            for row in self.rows:
                table.add_row(*(cell(key, row) for key in shown))
        return table

    def _is_shared(self, key: str) -> bool:
        values = [row[key] for row in self.rows]
        return len(values) > 1 and values[0] is not None and all(value == values[0] for value in values)


# How a column's name ends -> how its heading does; the longer endings first.
_UNITS = {
    "_tokens_per_s": " tokens/s",
    "_gb_per_s": " GB/s",
    "_ms": " ms",
    "_gb": " GB",
    "_s": " s",
}


def _heading(key: str) -> str:
    for ending, unit in _UNITS.items():
        if key.endswith(ending):
            return key.removesuffix(ending).replace("_", " ") + unit
    return key.replace("_", " ")


def command_line(args: argparse.Namespace) -> str:
    return shlex.join([*args.program.split(), *args.argv])


def median_of(values: Sequence[float] | None) -> float | None:
    return statistics.median(values) if values else None


def medians(number: int, noun: str) -> str:
    """How notes begin."""
    return f"Medians of {number} {noun}s" if number > 1 else f"One {noun}"


def format_number(value: Any) -> str:
    """About four significant digits."""
    if value is None:
        return "–"
    if isinstance(value, float):
        size = abs(value)
        digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3
        return f"{value:,.{digits}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
