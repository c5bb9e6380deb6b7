"""`progress`: how far one is, in each folder that was started from this clone."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from milestones.chain import Course
from milestones.labs.exercise import Exercise
from milestones.labs.lab import Lab, exercises_of
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
    for lab in sorted(labs, key=lambda lab: lab.number):
        exercises = exercises_of(course, lab)
        solved = sum(lab.is_solved(exercise) for exercise in exercises)
        milestone = course.get(lab.milestone)
        bar = "█" * solved + "░" * (len(exercises) - solved)
        console.print(
            Text.assemble(
                (f"M{lab.number} {milestone.title[language]}", "bold"),
                ("  " + bar, "green"),
                ("  " + say(language, "sum", solved=solved, total=len(exercises)), "dim"),
            )
        )
        console.print(Text(str(lab.folder), style="dim"), overflow="fold")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(say(language, "exercise"), ratio=1)
        for key in ("state", "checks", "hints", "predicted"):
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
