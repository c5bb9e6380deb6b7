"""What a `milestone.toml` says, as dataclasses, and the reader that refuses a misspelt one.

A milestone names its files by pattern: `*` stays inside one folder, `**` crosses folders. An exact path
beats a pattern, so one file of a later milestone may live in a folder that an earlier one claims as a
whole.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

LANGUAGES = ("en", "zh")
NOTES = "docs/"  # with their figures


class MilestoneError(Exception):
    """Something the person at the keyboard can put right; the text says what."""


@dataclass(frozen=True)
class Step:
    """One commit of the row that leads to a milestone: one idea, with what belongs to it."""

    title: str
    body: str  # what the idea is, for the commit
    read: list[str]  # files to read first, in this order
    show: str  # a command that shows it
    files: list[str]  # patterns, tests apart; notes have a step behind the others
    tests: list[str]  # patterns: the tests that come with it, and what these need
    rest: bool = False  # takes what no step names; without such a step the last one does


@dataclass(frozen=True)
class Milestone:
    """One `milestone.toml`. `files`, `tests`, `examples` and `notes` are patterns: what arrives here."""

    number: int
    title: dict[str, str]
    summary: dict[str, str]
    files: list[str]
    tests: list[str]
    examples: list[str]
    notes: list[str]
    changes: list[str]  # exact paths of earlier files whose content is another one from here on
    forbidden: list[str]  # names of later milestones, which must not occur in this one's code
    steps: list[Step]  # in the order of dependence; none: the milestone is one commit
    run: str = ""  # what to run first in its tree; "": its first example
    expect: str = ""  # lines that this prints, in order

    @property
    def id(self) -> str:
        return f"m{self.number}"

    @property
    def label(self) -> str:
        return f"M{self.number}: {self.title['en']}"

    @property
    def patterns(self) -> list[str]:
        return [*self.files, *self.tests, *self.examples, *self.notes]


def parse_milestone(number: int, text: str) -> Milestone:
    """Read one milestone.toml; every error starts with the file's name."""
    where = f"milestones/m{number}/milestone.toml"
    try:
        table = {"steps": [], "run": "", "expect": "", **tomllib.loads(text)}
    except tomllib.TOMLDecodeError as error:
        raise MilestoneError(f"{where}: {error}") from error
    _check_keys(where, table, {f.name for f in fields(Milestone)} - {"number"})
    for key in ("run", "expect"):
        if not isinstance(table[key], str):
            raise MilestoneError(f"{where}: {key} must be a string, got {table[key]!r}")
    if not isinstance(table["steps"], list):
        raise MilestoneError(f"{where}: steps must be written as [[steps]] tables")
    steps = [_parse_step(f"{where}: step {i}", step) for i, step in enumerate(table["steps"], 1)]
    if sum(step.rest for step in steps) > 1:
        raise MilestoneError(f"{where}: only one step may have rest = true")
    return Milestone(
        number=number,
        title=_in_each_language(where, "title", table["title"], str),
        summary=_in_each_language(where, "summary", table["summary"], str),
        steps=steps,
        run=table["run"],
        expect=table["expect"].strip("\n"),
        **{
            key: _strings(where, key, table[key])
            for key in ("files", "tests", "examples", "notes", "changes", "forbidden")
        },
    )


def _parse_step(where: str, table: Any) -> Step:
    table = {"rest": False, **table} if isinstance(table, dict) else table
    _check_keys(where, table, {f.name for f in fields(Step)})
    for key in ("title", "body", "show"):
        if not isinstance(table[key], str) or not table[key].strip():
            raise MilestoneError(f"{where}: {key} must be a non-empty string, got {table[key]!r}")
    if "\n" in table["title"]:
        raise MilestoneError(f"{where}: title must be one line, got {table['title']!r}")
    if not isinstance(table["rest"], bool):
        raise MilestoneError(f"{where}: rest must be true or false, got {table['rest']!r}")
    lists = {key: _strings(where, key, table[key]) for key in ("read", "files", "tests")}
    if not lists["read"]:
        raise MilestoneError(f"{where}: read must name the file to read first")
    if wrong := [p for p in lists["tests"] if not p.startswith("tests/")]:
        raise MilestoneError(f"{where}: tests must begin with tests/, got {wrong[0]!r}")
    if wrong := [p for p in lists["files"] if p.startswith(NOTES)]:
        raise MilestoneError(f"{where}: files must not begin with {NOTES}, got {wrong[0]!r}: notes have a last step")
    return Step(title=table["title"], body=table["body"].strip(), show=table["show"], rest=table["rest"], **lists)


def _check_keys(where: str, table: Any, known: set[str]) -> None:
    if not isinstance(table, dict):
        raise MilestoneError(f"{where}: must be a table")
    if unknown := sorted(table.keys() - known):
        raise MilestoneError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}")
    if missing := sorted(known - table.keys()):
        raise MilestoneError(f"{where}: {missing[0]} is missing")


def _in_each_language(where: str, key: str, value: Any, kind: type) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != set(LANGUAGES):
        raise MilestoneError(f"{where}: {key} must have exactly {' and '.join(LANGUAGES)}, got {value!r}")
    for language, entry in value.items():
        if not isinstance(entry, kind):
            raise MilestoneError(f"{where}: {key}.{language} must be a {kind.__name__}, got {entry!r}")
    return value


def _strings(where: str, key: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
        raise MilestoneError(f"{where}: {key} must be a list of non-empty strings, got {value!r}")
    return value


@cache
def pattern_regex(pattern: str) -> re.Pattern[str]:
    """`*` matches inside one folder, `**` any number of folders (or, at the end, everything below)."""
    out = ""
    segments = pattern.split("/")
    for i, segment in enumerate(segments):
        last = i == len(segments) - 1
        if segment == "**":
            out += ".+" if last else "(?:[^/]+/)*"
        else:
            out += "".join("[^/]*" if c == "*" else re.escape(c) for c in segment) + ("" if last else "/")
    return re.compile(out)


def matches(pattern: str, path: str) -> bool:
    return pattern_regex(pattern).fullmatch(path) is not None


def find_specs(paths: Mapping[str, object]) -> list[int]:
    """Numbers of the milestones that have a milestone.toml; they must run 0, 1, 2, … without a gap."""
    found = sorted(int(m.group(1)) for path in paths if (m := re.fullmatch(r"milestones/m(\d+)/milestone\.toml", path)))
    if not found:
        raise MilestoneError("milestones/m0/milestone.toml is missing: is this FoloVLLM's repository?")
    if found != list(range(len(found))):
        raise MilestoneError(f"milestones must be numbered from m0 without a gap, found {found}")
    return found
