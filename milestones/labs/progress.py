"""`progress`: how far one is, in each folder that was started from this clone."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.table import Table
from rich.text import Text

from milestones.chain import Course
from milestones.labs.exercise import Exercise, load_exercises
from milestones.labs.lab import Lab, exercises_of, following
from milestones.labs.words import say

STYLES = {
    "solved": "green",
    "shown": "green",
    "applied": "cyan",
    "changed": "yellow",
    "started": "yellow",
    "open": "dim",
}


def show_progress(console: Console, course: Course, labs: list[Lab], language: str) -> None:
    """The whole way: milestones that were started with their exercises, the others with a line each, what is next."""
    _show_labs(console, course, labs, language)
    started = {lab.number for lab in labs}
    for milestone in course.milestones:
        exercises = load_exercises(course.snapshot, milestone.number)
        if exercises and milestone.number not in started:
            to_come = say(language, "exercises_to_come", n=len(exercises), time=_time(exercises, language))
            console.print(Text(f"M{milestone.number} {milestone.title[language]}  {to_come}", style="dim"))
    label = say(language, "next")
    if not labs:
        console.print(f"\n{label}  python -m milestones start m0 ../m0-lab", markup=False)
        return
    lab = labs[-1]  # the one used last
    todo = next((e for e in exercises_of(course, lab) if not lab.is_solved(e)), None)
    command = f"python -m milestones check --dir {shlex.quote(str(lab.folder))}"
    if todo is not None:
        console.print(f"\n{label}  {command}   ({todo.pages[language].title})", markup=False, soft_wrap=True)
    elif (later := following(course, lab)) is not None:
        beside = shlex.quote(str(lab.folder.parent / f"{later}-lab"))
        command = f"python -m milestones start {later} {beside} --from {shlex.quote(str(lab.folder))}"
        console.print(f"\n{label}  {command}", markup=False, soft_wrap=True)


def _show_labs(console: Console, course: Course, labs: list[Lab], language: str) -> None:
    for lab in sorted(labs, key=lambda lab: lab.number):
        exercises = exercises_of(course, lab)
        todo = [exercise for exercise in exercises if not lab.is_solved(exercise)]
        solved = len(exercises) - len(todo)
        milestone = course.get(lab.milestone)
        bar = "█" * solved + "░" * (len(exercises) - solved)
        console.print(
            Text.assemble(
                (f"M{lab.number} {milestone.title[language]}", "bold"),
                ("  " + bar, "green"),
                ("  " + say(language, "sum", solved=solved, total=len(exercises)), "dim"),
                (" · " + say(language, "left", time=_time(todo, language)) if todo else "", "dim"),
            )
        )
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


def _time(exercises: list[Exercise], language: str) -> str:
    """How long they take, in words."""
    hours, minutes = divmod(sum(exercise.minutes for exercise in exercises), 60)
    key = "hours" if hours else "minutes_only"
    return say(language, key, hours=hours, minutes=minutes)


def state_of(lab: Lab, exercise: Exercise) -> str:
    """solved, applied (by the course's solution), shown (solved, but the solution was seen), changed, started, open."""
    done = lab.done(exercise)
    if lab.is_solved(exercise):
        return done.solution or "solved"
    if done.passed:
        return "changed"
    return "started" if done.checks or done.hints or done.predictions else "open"
