"""`check --watch`: checks again whenever a file of the package is saved. At a terminal `check` does so for the first
exercise of a milestone. Looks at the files' times: no library needed, and it works on every file system."""

from __future__ import annotations

import time

from rich.console import Console

from milestones.chain import Course
from milestones.labs.check import check
from milestones.labs.exercise import Exercise
from milestones.labs.lab import Lab, choose, first_open, following
from milestones.labs.onward import GENERATES
from milestones.labs.screen import show_check, show_end
from milestones.labs.words import say

PAUSE = 0.3  # seconds between two looks


def watch(
    console: Console,
    course: Course,
    lab: Lab,
    exercises: list[Exercise],
    name: str | None,
    *,
    verbose: bool,
    once: bool = False,
) -> int:
    """Check now and after each save, until Ctrl-C or until everything is solved; once: until one more is."""
    above = ""  # what was solved just now: the next exercise is shown below it
    try:
        while True:
            exercise = choose(exercises, name, lab.language) if name and not once else first_open(lab, exercises)
            if exercise is None:
                is_shown = GENERATES not in course.tree(lab.number)
                show_end(console, lab, len(exercises), following(course, lab), is_shown=is_shown)
                return 0
            seen = _stamps(lab)
            with console.status(say(lab.language, "checking", name=exercise.id)):
                checked = check(lab, course, exercises, exercise)
            is_solved = checked.grade.outcome == "solved"
            goes_on = first_open(lab, exercises) is None if once else name is None
            if is_solved and goes_on:
                above = f"✔ {exercise.folder[:2]} {exercise.pages[lab.language].title}: {say(lab.language, 'solved')}"
                continue  # with the next one
            if console.is_terminal:
                console.clear()
            if above:
                console.print(f"{above}\n", style="bold green", markup=False)
                above = ""
            show_check(console, lab, exercises, checked, verbose=verbose)
            if is_solved and once:
                return 0
            console.print(say(lab.language, "watching", time=time.strftime("%H:%M:%S")), style="dim")
            while _stamps(lab) == seen:
                time.sleep(PAUSE)
    except KeyboardInterrupt:
        console.print()
        return 0


def _stamps(lab: Lab) -> dict[str, tuple[int, int]]:
    """Time and size of each file of the package."""
    found = {}
    for path in (lab.folder / "folovllm").rglob("*.py"):
        try:
            stat = path.stat()
        except OSError:
            continue  # an editor replaces a file by deleting it first
        found[str(path)] = (stat.st_mtime_ns, stat.st_size)
    return found
