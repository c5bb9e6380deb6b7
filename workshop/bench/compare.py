"""Two JSON files of the same benchmark: which figures moved, and by more than their rounds do?

    a.json  rows, samples  ─┐  rows of the same load  ─▶  b over a, an interval (spread.py), a verdict
    b.json  rows, samples  ─┘

Files of different benchmarks, models or loads are refused: their ratio would be a number without a meaning. Another
machine, or one that other work kept busy, is a warning. What the rounds cannot show is what differed between the two
runs as wholes, such as a warmer CPU; for that, run both again the other way round.

vLLM: benchmarks/ compares by hand (.buildkite/performance-benchmarks)
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from folovllm.bench.report import Line, Report, Row
from folovllm.utils.checks import describe, wrong
from folovllm.utils.named_files import read_json, wrong_file
from milestones.bench.spread import Spread, apart, is_positive, samples_of

COLUMNS = ["row", "figure", "a", "b", "b_over_a", "low", "high", "sure", "verdict"]
# Columns that say what was asked for, and not what came of it.
LOAD = (
    "engine", "milestone", "workload", "prompts", "dtype", "requests", "batch", "prompt_tokens", "output_tokens",
    "context", "blocks", "waiting", "part", "feature", "max_num_batched_tokens", "kv_cache_dtype", "backend",
)  # fmt: skip
# How the names of measured columns end; of the first, more is better, of the others less.
RATES, TIMES = ("_per_s",), ("seconds", "_s", "_ms", "_us")
MACHINE = ("cpu", "cores", "threads", "units", "gpus", "system")
# Options that do not change what is measured.
QUIET = ("--json", "--rounds", "--peer", "--peer-python", "--out")

MUST = "be JSON that a benchmark wrote with --json"


def _are_rows(value: object, cells: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, dict) and all(isinstance(cell, cells) for cell in row.values()) for row in value
    )


# What is read of a file, and what it must be for that; the first three must be there.
PARTS: dict[str, Callable[[Any], bool]] = {
    "command": lambda value: isinstance(value, str),
    "columns": lambda value: isinstance(value, list) and all(isinstance(column, str) for column in value),
    "rows": lambda value: bool(value) and _are_rows(value, str | int | float | None),
    "samples": lambda value: _are_rows(value, list),
    "details": lambda value: isinstance(value, dict) and _are_rows(value.get("samples") or [], list),
    "versions": lambda value: isinstance(value, dict),
}


def load(path: str) -> dict[str, Any]:
    """A benchmark's JSON.

    Raises:
        ValueError: no such file, or not one that a benchmark wrote.
    """
    data = read_json("file", MUST, path)
    if not isinstance(data, dict):
        raise wrong_file("file", MUST, path, "it is no object")
    for number, (key, is_right) in enumerate(PARTS.items()):
        if key not in data and number < 3:
            raise wrong_file("file", MUST, path, f"it lacks {key}")
        if key in data and not is_right(data[key]):
            raise wrong_file("file", MUST, path, f"its {key} is {describe(data[key])}")
    return data


def add_arguments(command: argparse.ArgumentParser) -> None:
    text = "Compare two files that --json wrote: ratios with their spread, and which of them are more than noise."
    command.description = text
    command.add_argument("a", metavar="A.json", help="what was before")
    command.add_argument("b", metavar="B.json", help="what is now; a ratio is b over a")
    command.add_argument("--json", metavar="PATH", help="write the result here; - prints it, and no table")
    command.set_defaults(threads=None)


def run(args: argparse.Namespace) -> Report:
    """Every measured figure of the rows that both files have.

    Raises:
        ValueError: the files are of different benchmarks, models or loads; the text says in what.
    """
    path_a, path_b = args.a, args.b
    a, b = load(path_a), load(path_b)
    require_same("benchmark", path_b, kind(a), kind(b))
    require_same("title", path_b, a.get("title"), b.get("title"))
    lines: list[Line] = [(row, {}) for pair in matched(a, b, path_b) for row in compare_rows(a, b, *pair)]
    if not lines:
        raise wrong("b", "have a measured figure that a has too", path_b, "their rows share no such column")
    notes = [
        f"a: {path_a} ({a.get('date', 'no date')}), b: {path_b} ({b.get('date', 'no date')}).",
        "b_over_a: the middle one of every round of b over every round of a; low to high holds the true ratio, as sure "
        "as the column says. better or worse: 1 is outside. noise: 1 is inside. Under 95% there are too few rounds: "
        "take four or more of each (--rounds).",
        *warnings(a, b),
    ]
    title = f"Compared: {a.get('title', kind(a))}"
    return Report.of(args, title, COLUMNS, lines, notes)


def kind(data: dict[str, Any]) -> str:
    """The benchmark's name in its command: `folovllm bench decode ...`, `python -m workshop.bench decode` -> decode."""
    words = shlex.split(data["command"])
    after = next((words[at + 1 :] for at, word in enumerate(words) if word in ("bench", "workshop.bench")), [])
    if "milestones" not in words:
        return after[0] if after else str(data.get("name", ""))
    workload = [second for first, second in pairwise(after) if first == "--workload"]
    return "milestones " + (workload[0] if workload else "requests")


def require_same(what: str, path: str, a: object, b: object) -> None:
    if a != b:
        raise wrong("b", f"have the {what} of a, {describe(a)}", b, f"{path} was measured on something else")


def matched(a: dict[str, Any], b: dict[str, Any], path: str) -> Iterator[tuple[int, int]]:
    """Indices of rows of the same load. Peers that only one file has are left out; a load that differs is refused."""
    of_b = {load_of(row): number for number, row in enumerate(b["rows"])}
    pairs = [(number, of_b[key]) for number, row in enumerate(a["rows"]) if (key := load_of(row)) in of_b]
    if pairs:
        yield from pairs
        return
    ours, theirs = dict(load_of(a["rows"][0])), dict(load_of(b["rows"][0]))
    for column in sorted(ours.keys() | theirs.keys()):
        require_same(column.replace("_", " "), path, ours.get(column), theirs.get(column))


def load_of(row: Row) -> tuple[tuple[str, Any], ...]:
    return tuple((column, row[column]) for column in LOAD if column in row)


def compare_rows(a: dict[str, Any], b: dict[str, Any], at_a: int, at_b: int) -> Iterator[Row]:
    row_a, row_b = a["rows"][at_a], b["rows"][at_b]
    names = [str(row_a[column]) for column in ("engine", "milestone", "feature", "part") if column in row_a]
    varies = [c for c in LOAD[4:] if c in row_a and len({row.get(c) for row in a["rows"]}) > 1]
    label = " ".join([*names, *(f"{column} {row_a[column]}" for column in varies)]) or "–"
    for column in a["columns"]:
        old, new = row_a.get(column), row_b.get(column)
        if direction(column) == 0 or not is_positive(old) or not is_positive(new):
            continue
        rounds = samples_of(a, at_a, column), samples_of(b, at_b, column)
        found = apart(*rounds) if all(rounds) else None
        yield {
            "row": label,
            "figure": column,
            "a": old,
            "b": new,
            "b_over_a": found.ratio if found else new / old,
            "low": found.low if found else None,
            "high": found.high if found else None,
            "sure": found.level if found else None,
            "verdict": verdict(found, direction(column)),
        }


def direction(column: str) -> int:
    """1 where more is better, -1 where less is, 0 for a column that is no measured speed."""
    if column.endswith(RATES):
        return 1
    return -1 if column.endswith(TIMES) and column != "floor_s" else 0


def verdict(found: Spread | None, towards: int) -> str:
    if found is None:
        return "no rounds"
    if found.verdict not in ("above", "below"):
        return found.verdict
    return "better" if (found.verdict == "above") == (towards > 0) else "worse"


def warnings(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """What may be behind a difference besides the code."""
    found = []
    for key in MACHINE:
        old, new = (data["hardware"].get(key) if isinstance(data.get("hardware"), dict) else None for data in (a, b))
        if old != new:
            found.append(f"Warning: not the same {key}: {describe(old)} in a, {describe(new)} in b.")
    for key in sorted(a.get("versions", {}).keys() | b.get("versions", {}).keys()):
        old, new = a.get("versions", {}).get(key), b.get("versions", {}).get(key)
        if old != new:
            found.append(f"Other versions: {key} {old} in a, {new} in b.")
    if (old := options(a)) != (new := options(b)):
        found.append(f"Other options: {shlex.join(old) or 'none'} in a, {shlex.join(new) or 'none'} in b.")
    for name, data in (("a", a), ("b", b)):
        load = data.get("other_load")
        if isinstance(load, dict) and load.get("is_busy"):
            found.append(f"Warning: other processes kept the machine busy while {name} ran.")
    return found


def options(data: dict[str, Any]) -> list[str]:
    """The command's words without those that do not change what is measured, each option with its values, sorted."""
    words: list[list[str]] = []
    for word in shlex.split(data["command"]):
        if word.startswith("--"):
            words.append(word.split("=", 1))
        elif words:
            words[-1].append(word)
    return [part for option in sorted(words) if option[0] not in QUIET for part in option]
