"""`progress`: the whole way, and where one is on it: the exercises of the folder in which one stands, or of the one
used last. Hours are those of the course's page (site/way.py): its pages and exercises that are still to do."""

from __future__ import annotations

import shlex
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from milestones.chain import Course
from milestones.labs.exercise import Exercise, load_exercises
from milestones.labs.lab import Lab, exercises_of, first_open, following
from milestones.labs.screen import start_command
from milestones.labs.words import say

# By name: the site imports the exercises, which its pages run, and is not imported by them.
_way = import_module("milestones.site.way")
hours, minutes_of = _way.hours, _way.minutes_of

STYLES = {
    "solved": "green",
    "shown": "green",
    "applied": "cyan",
    "changed": "yellow",
    "started": "yellow",
    "open": "dim",
}


def show_progress(console: Console, course: Course, labs: list[Lab], here: Lab | None, language: str) -> None:
    """A line for each milestone, or each folder of it; below that of `here` its exercises; at the end what is next."""
    total = left = 0

    def read(path: str) -> str:
        return course.snapshot[path].data.decode("utf-8")

    for milestone in course.milestones:
        exercises = load_exercises(course.snapshot, milestone.number)
        if not exercises:
            continue
        title = f"M{milestone.number} {milestone.title[language]}  "
        whole = least = sum(minutes_of(milestone.id, read))
        started = [lab for lab in labs if lab.number == milestone.number]
        for lab in started:
            todo = [exercise for exercise in exercises if not lab.is_solved(exercise)]
            solved = len(exercises) - len(todo)
            to_go = sum(minutes_of(milestone.id, read, {e.id for e in exercises if e not in todo}))
            least = min(least, to_go)
            line = Text.assemble((title, "bold"), ("█" * solved + "░" * len(todo), "green"))
            line.append("  " + say(language, "sum", solved=solved, total=len(exercises)), style="dim")
            if to_go:
                line.append(" · " + say(language, "left", time=hours(to_go, language)), style="dim")
            is_here = here is not None and lab.folder == here.folder
            console.print(line.append("  " + say(language, "here") if is_here else "", style="bold yellow"))
            if is_here:
                _show_exercises(console, lab, exercises, language)
        if not started:
            to_come = say(language, "exercises_to_come", n=len(exercises), time=hours(whole, language))
            console.print(Text(title + to_come, style="dim"))
        total, left = total + whole, left + least
    console.print(say(language, "in_all", total=hours(total, language), left=hours(left, language)), style="dim")
    _show_next(console, course, here, language)


def _show_next(console: Console, course: Course, here: Lab | None, language: str) -> None:
    label = say(language, "next")
    if here is None:
        console.print(f"\n{label}  python -m milestones start m0 ../m0-lab", markup=False)
    elif (todo := first_open(here, exercises_of(course, here))) is not None:
        place = "" if here.folder in (Path.cwd(), *Path.cwd().parents) else f" --dir {shlex.quote(str(here.folder))}"
        title = todo.pages[language].title
        console.print(f"\n{label}  python -m milestones watch{place}   ({title})", markup=False, soft_wrap=True)
    elif (later := following(course, here)) is not None:
        console.print(f"\n{label}  {start_command(here, later)}", markup=False, soft_wrap=True)


def _show_exercises(console: Console, lab: Lab, exercises: list[Exercise], language: str) -> None:
    console.print(Text(str(lab.folder), style="dim"), overflow="fold")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(say(language, "exercise"), ratio=1)
    for key in ("state", "in_minutes", "checks", "hints", "predicted"):
        table.add_column(say(language, key), no_wrap=True, justify="left" if key == "state" else "right")
    for exercise in exercises:
        table.add_row(*_row(lab, exercise, language))
    console.print(table)
    console.print()


def _row(lab: Lab, exercise: Exercise, language: str) -> list[Text]:
    done, state = lab.done(exercise), state_of(lab, exercise)
    questions = exercise.pages[language].questions
    right = sum(given == q.answer for given, q in zip(done.predictions, questions, strict=False))
    predicted = f"{right}/{len(questions)}" if done.predictions else ""
    return [
        Text(f"{exercise.folder[:2]} {exercise.pages[language].title}"),
        Text(say(language, f"state_{state}"), style=STYLES[state]),
        Text(str(exercise.minutes)),
        Text(str(done.checks or "")),
        Text(str(done.hints or "")),
        Text(predicted),
    ]


def state_of(lab: Lab, exercise: Exercise) -> str:
    """solved, applied (by the course's solution), shown (solved, but the solution was seen), changed, started, open."""
    done = lab.done(exercise)
    if lab.is_solved(exercise):
        return done.solution or "solved"
    if done.passed:
        return "changed"
    return "started" if done.checks or done.hints or done.predictions else "open"
