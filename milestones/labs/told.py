"""What a check says of a failure, label and value, as a terminal and a page of the site show it."""

from __future__ import annotations

from collections.abc import Callable

from milestones.labs import blank
from milestones.labs.exercise import Exercise
from milestones.labs.grade import Grade
from milestones.labs.words import say
from milestones.spec import MilestoneError


def marks(exercise: Exercise, grade: Grade) -> list[tuple[str, str]]:
    """✔ 1, ✔ 2, ✘ 3, · 4, each with its style."""
    found = []
    for number in range(1, len(exercise.pages["en"].invariants) + 1):
        tests = grade.judged.count(number)
        if number == grade.invariant and grade.outcome != "solved":
            found.append((f"✘ {number}", "red"))
        elif tests and grade.passed.count(number) == tests:
            found.append((f"✔ {number}", "green"))
        else:
            found.append((f"· {number}", "dim"))
    return found


def facts(
    exercise: Exercise, grade: Grade, language: str, read: Callable[[str], str], *, verbose: bool = False
) -> list[tuple[str, str, str]]:
    """(label, value, style) line by line: expected, got, where. read: a file of the learner's, by its path."""
    failure = grade.failure
    rows: list[tuple[str, str, str]] = []

    def row(key: str, value: str, style: str = "") -> None:
        rows.append((say(language, key) if key else "", value, style))

    for name, value in failure.get("values", {}).items():
        row("with", f"{name} = {value}")
    if grade.outcome == "wrong":
        row("expected", failure["expected"], "green")
        row("got", failure["got"], "red")
    elif grade.outcome == "blank":
        row("", say(language, "blank"), "yellow")
    elif grade.outcome == "error":
        kind, text = failure["kind"], failure["text"]
        if kind == "SyntaxError" or kind in ("IndentationError", "TabError"):
            row("", say(language, "syntax", text=text), "red")
        else:
            row("", say(language, "raised", error=f"{kind}: {text}" if text else kind), "red")
    elif grade.outcome == "time":
        key = "time_printing" if grade.was_printing else "time"
        row("", say(language, key, seconds=exercise.seconds), "red")
    elif grade.outcome == "crash":
        row("", say(language, "crash", text=failure["text"]), "red")
    elif grade.outcome == "needs":
        row("", say(language, "needs", other=grade.problem), "yellow")
    else:
        row("", say(language, "broken", problem=grade.problem), "red")
    frames = failure.get("frames", [])
    own = [frame for frame in frames if frame["file"] == exercise.file] or frames
    if grade.outcome in ("error", "time", "crash") and own:
        for frame in frames if verbose else own[-1:]:
            inside = f"  {frame['name']}" if frame["name"] else ""
            row("at", f"{frame['file']}:{frame['line']}{inside}", "cyan")
            if code := frame["code"] or _line(read(frame["file"]), frame["line"]):
                row("", code)
    elif grade.outcome != "needs":
        for place in places(exercise, read(exercise.file)):
            row("look", place, "cyan")
    return rows


def _line(text: str, number: int) -> str:
    lines = text.splitlines()
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def places(exercise: Exercise, text: str) -> list[str]:
    """file:line and name of each function to write, as they stand in the learner's file."""
    found = []
    for function in exercise.functions:
        try:
            found.append(f"{exercise.file}:{blank.find(text, function).lineno}  {function}")
        except MilestoneError:
            found.append(f"{exercise.file}  {function}")
    return found
