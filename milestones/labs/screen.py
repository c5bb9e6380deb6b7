"""What a learner sees of a check, in 80 columns: one thing at a time."""

from __future__ import annotations

import os
import shlex

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from milestones.chain import Course
from milestones.labs.check import Checked
from milestones.labs.exercise import BEST, Exercise
from milestones.labs.grade import Grade
from milestones.labs.lab import Lab, exercises_of, following
from milestones.labs.onward import GENERATES
from milestones.labs.prose import Prose, python
from milestones.labs.told import facts, marks, places
from milestones.labs.words import say

WIDTH, WIDEST = 80, 100


class LabConsole(Console):
    """As wide as the terminal is at the moment, 100 columns at the most; in a pipe 80."""

    def __init__(self) -> None:
        super().__init__(highlight=False)

    @property  # type: ignore[misc]  # it is never set
    def size(self) -> ConsoleDimensions:
        known, now = self.is_terminal or "COLUMNS" in os.environ, super().size
        return ConsoleDimensions(min(now.width, WIDEST) if known else WIDTH, now.height)

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
        _show_figure(console, lab, exercise, grade.figure)
    console.print()
    notes = [("outside", checked.outside), ("tests_changed", checked.tests)]
    for key, files in notes:
        if files:
            console.print(Text(say(language, key, files=_some(language, files)), style="yellow"))
    if checked.outdated:
        console.print(Text(say(language, "outdated"), style="yellow"))


def _show_figure(console: Console, lab: Lab, exercise: Exercise, figure: float) -> None:
    """Of an open task: how good it is, and how good it was before."""
    language, known, before = lab.language, exercise.figure, lab.done(exercise).figures
    figures = {name: f"{value:g}" for name, value in {**known, "yours": figure}.items()}
    way = say(language, "lower" if exercise.is_lower_better else "higher")
    console.print("\n  " + say(language, "figures", **figures, way=way))
    sign = 1 if exercise.is_lower_better else -1
    past_ours, past_best = (sign * (known[name] - figure) for name in ("ours", BEST))
    key = "past_best" if past_best > 0 else "best_reached" if past_best == 0 else "past_ours"
    if past_ours <= 0:
        key = "short_of_ours" if past_ours else "like_ours"
    console.print("  " + say(language, key), style="bold green" if past_best >= 0 else "")
    if len(before) > 1:
        console.print("  " + say(language, "so_far", figures=", ".join(f"{value:g}" for value in before)), style="dim")


def show_line(console: Console, lab: Lab, checked: Checked) -> None:
    """✘ 03 Share first, copy when written  Invariant 2"""
    exercise, grade = checked.exercise, checked.grade
    known = {"solved": ("✔", "green", "solved"), "blank": ("·", "dim", "blank"), "needs": ("·", "dim", "after")}
    mark, style, key = known.get(grade.outcome, ("✘", "red", "invariant"))
    told = say(lab.language, key, n=grade.invariant or "…", other=grade.problem)
    title = exercise.pages[lab.language].title
    console.print(Text(f"{mark} {exercise.folder[:2]} {title}  ", style=style).append(told, style="dim"))


def show_hint(console: Console, lab: Lab, exercise: Exercise) -> None:
    """One hint more than were seen."""
    done, hints = lab.done(exercise), exercise.pages[lab.language].hints
    done.hints = min(done.hints + 1, len(hints))
    lab.save()
    console.print(say(lab.language, "hint_of", n=done.hints, total=len(hints)), style="bold", markup=False)
    console.print(Padding(Prose(hints[done.hints - 1]), (1, 0, 1, 2)))


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
        parts += ["", Text(say(language, "predict_first", name=exercise.name), style="dim")]
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


def show_next(console: Console, lab: Lab, exercises: list[Exercise], checked: Checked) -> None:
    language, exercise, grade = lab.language, checked.exercise, checked.grade
    todo = next((e for e in exercises if not lab.is_solved(e)), None)
    if grade.outcome != "solved":
        command = "watch" if grade.outcome == "blank" else "hint"
        command += "" if todo is exercise else f" {exercise.name}"
        if grade.outcome == "needs":
            command = f"check {grade.problem.rpartition('/')[2]}"
        console.print(Text.assemble((f"{say(language, 'next')}  ", "dim"), f"python -m milestones {command}"))
    else:
        command = f"python -m milestones compare {exercise.name}"
        console.print(Text.assemble((f"{say(language, 'others')}  ", "dim"), command))
        if todo is not None:
            title = todo.pages[language].title
            command = f"python -m milestones check   ({title})"
            console.print(Text.assemble((f"{say(language, 'next')}  ", "dim"), command))


def show_end(console: Console, lab: Lab, course: Course, *, is_shown: bool = False) -> None:
    """All exercises of the milestone are solved. is_shown: so is what the engine can do."""
    language, total, later = lab.language, len(exercises_of(course, lab)), following(course, lab)
    told = say(language, "done_all", total=total, milestone=lab.milestone.upper())
    console.print(Text(told, style="bold green"))
    if not is_shown and GENERATES in course.tree(lab.number):
        console.print(say(language, "done_finish", command="python -m milestones finish"))
    tests = f"cd {shlex.quote(str(lab.folder))} && python -m pytest"
    console.print(say(language, "done_next", tests=tests), soft_wrap=True)  # a command is not broken over lines
    if later is None:
        console.print(say(language, "done_end"))
    else:
        told = say(language, "done_after", milestone=later.upper(), command=start_command(lab, later))
        console.print(told, soft_wrap=True)


def start_command(lab: Lab, later: str) -> str:
    """Goes on with milestone `later` beside the folder."""
    beside = shlex.quote(str(lab.folder.parent / f"{later}-lab"))
    return f"python -m milestones start {later} {beside} --from {shlex.quote(str(lab.folder))}"
