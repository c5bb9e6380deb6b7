"""What a learner sees of a check, in 80 columns: one thing at a time."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from milestones.labs.check import Checked
from milestones.labs.exercise import Exercise
from milestones.labs.grade import Grade
from milestones.labs.lab import Lab
from milestones.labs.prose import Prose, python
from milestones.labs.told import facts, marks, places
from milestones.labs.words import say

WIDTH, WIDEST = 80, 100


class LabConsole(Console):
    """As wide as the terminal, 100 columns at the most; in a pipe 80."""

    def __init__(self) -> None:
        super().__init__(highlight=False)
        known = self.is_terminal or "COLUMNS" in os.environ
        self.width = min(self.size.width, WIDEST) if known else WIDTH

    def on_broken_pipe(self) -> None:
        """The reader has left. main() knows what to do; rich would end the program with status 1."""
        raise  # the BrokenPipeError that rich is handling


def show_check(console: Console, lab: Lab, exercises: list[Exercise], checked: Checked, *, verbose: bool) -> None:
    """The whole screen of one check."""
    language, exercise, grade = lab.language, checked.exercise, checked.grade
    page = exercise.pages[language]
    solved = sum(lab.is_solved(e) for e in exercises)
    title = Text.assemble((f"M{exercise.milestone} · {exercise.folder[:2]} ", "bold"), (page.title, "bold"))
    told = say(language, "of", n=exercises.index(exercise) + 1, total=len(exercises), solved=solved)
    line = Table.grid(expand=True)
    line.add_column(ratio=1)
    line.add_column(justify="right", no_wrap=True)
    line.add_row(title, Text(told, style="dim"))
    console.print(line)
    console.print(Rule(style="dim"))
    for part in _body(lab, checked, verbose=verbose):
        console.print(part)
    if grade.figure is not None:
        figures = {name: f"{figure:g}" for name, figure in {**exercise.figure, "yours": grade.figure}.items()}
        console.print("\n  " + say(language, "figures", **figures))
    console.print()
    notes = [
        ("outside", checked.outside),
        ("tests_changed", checked.tests),
    ]
    for key, files in notes:
        if files:
            console.print(Text(say(language, key, files=_some(language, files)), style="yellow"))
    if checked.outdated:
        console.print(Text(say(language, "outdated"), style="yellow"))
    _show_next(console, lab, exercises, exercise, grade)


def _body(lab: Lab, checked: Checked, *, verbose: bool) -> list[RenderableType]:
    language, exercise, grade = lab.language, checked.exercise, checked.grade
    page = exercise.pages[language]
    if grade.outcome == "solved":
        return [_marks(exercise, grade), Text(f"✔ {say(language, 'solved')}", style="bold green")]
    if grade.outcome == "blank" and grade.invariant in (1, None) and not grade.passed:
        return [_task(lab, exercise)]
    parts: list[RenderableType] = [_marks(exercise, grade)]
    if grade.invariant is not None:
        number = grade.invariant
        mark = Text(f"✘ {say(language, 'invariant', n=number)}", style="bold red")
        parts += ["", mark, Padding(Prose(page.invariants[number - 1]), (0, 0, 0, 2))]
    failure = grade.failure
    asked = failure.get("asked", [])
    if asked:
        lines = asked if verbose else asked[-10:]
        parts += ["", Padding(python("\n".join(lines)), (0, 0, 0, 4))]
    parts += ["", _facts(lab, checked, verbose=verbose)]
    if grade.mistake:
        parts += ["", Padding(Prose(page.mistakes[grade.mistake]), (0, 0, 0, 2))]
    if printed := failure.get("printed", "").strip():
        lines = printed.splitlines() if verbose else printed.splitlines()[-6:]
        parts += ["", Text(say(language, "printed"), style="dim"), Padding(Text("\n".join(lines)), (0, 0, 0, 2))]
    return parts


def _marks(exercise: Exercise, grade: Grade) -> Text:
    return Text.assemble(*((f"{mark}   ", style) for mark, style in marks(exercise, grade)))


def _task(lab: Lab, exercise: Exercise) -> RenderableType:
    language = lab.language
    page = exercise.pages[language]
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_row(say(language, "read"), Text(f"docs/{language}/{exercise.note}"))
    table.add_row(say(language, "takes"), Text(say(language, "minutes", n=exercise.minutes)))
    for place in places(exercise, lab.read(exercise.file)):
        table.add_row(say(language, "write"), Text(place, style="cyan"))
    steps = Table.grid(padding=(0, 1, 0, 0))
    steps.add_column(justify="right", no_wrap=True)
    steps.add_column()
    for number, text in enumerate(page.invariants, 1):
        steps.add_row(Text(f"{number}.", style="bold"), Prose(text))
    parts: list[RenderableType] = [Prose(page.intro), "", table, "", steps]
    if page.rest:
        parts += ["", Prose(page.rest)]
    if len(lab.done(exercise).predictions) < len(page.questions):
        parts += ["", Text(say(language, "predict_first"), style="dim")]
    return Group(*parts)


def _facts(lab: Lab, checked: Checked, *, verbose: bool) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value, style in facts(checked.exercise, checked.grade, lab.language, lab.read, verbose=verbose):
        table.add_row(f"  {label}", Text(value, style=style))
    return table


def _some(language: str, files: list[str]) -> str:
    return files[0] if len(files) == 1 else say(language, "and_more", first=files[0], n=len(files) - 1)


def _show_next(console: Console, lab: Lab, exercises: list[Exercise], exercise: Exercise, grade: Grade) -> None:
    language = lab.language
    todo = next((e for e in exercises if not lab.is_solved(e)), None)
    if grade.outcome != "solved":
        command = "python -m milestones hint" if todo is exercise else f"python -m milestones hint {exercise.name}"
        if grade.outcome == "needs":
            command = f"python -m milestones check {grade.problem.rpartition('/')[2]}"
        elif grade.outcome == "blank":
            command = "python -m milestones check"
        console.print(Text.assemble((f"{say(language, 'next')}  ", "dim"), command))
    elif todo is not None:
        title = todo.pages[language].title
        console.print(Text.assemble((f"{say(language, 'next')}  ", "dim"), f"python -m milestones check   ({title})"))


def show_end(console: Console, lab: Lab, total: int, following: str | None, *, is_shown: bool = False) -> None:
    """All exercises of the milestone are solved. is_shown: so is what the engine can do, or there is none."""
    language = lab.language
    label = lab.milestone.upper()
    console.print(Text(say(language, "done_all", total=total, milestone=label), style="bold green"))
    if not is_shown:
        console.print(say(language, "done_finish", command="python -m milestones finish"))
    tests = f"cd {shlex.quote(str(lab.folder))} && python -m pytest"
    console.print(say(language, "done_next", tests=tests), soft_wrap=True)  # a command is not broken over lines
    if following is None:
        console.print(say(language, "done_end"))
    else:
        command = f"python -m milestones start {following} {shlex.quote(str(_beside(lab.folder, following)))}"
        command += f" --from {shlex.quote(str(lab.folder))}"
        console.print(say(language, "done_after", milestone=following.upper(), command=command), soft_wrap=True)


def _beside(folder: Path, name: str) -> Path:
    return folder.parent / f"{name}-lab"
