"""Copies of a learner's own code: one is made before any command of the course writes over it, and none is ever lost.

    .folovllm/kept/03-block-pool/1-before-reset.py      the whole file, as it was
                                 2-before-solution.py

Their numbers go up. A copy that says what the one before it says is not made twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from milestones.chain import Course
from milestones.labs import blank
from milestones.labs.exercise import Exercise, solved_tree
from milestones.labs.lab import Lab
from milestones.sources import File
from milestones.spec import MilestoneError

KEPT = ".folovllm/kept"
_NAME = re.compile(r"(\d+)-before-(reset|solution|restore)\.py")


@dataclass(frozen=True)
class Copy:
    """What a learner had written."""

    number: int
    before: str  # the command that wrote over it
    path: Path

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")


def copies(lab: Lab, exercise: Exercise) -> list[Copy]:
    """All of an exercise, the oldest first."""
    folder = lab.folder / KEPT / exercise.folder
    found = [(match, path) for path in folder.glob("*.py") if (match := _NAME.fullmatch(path.name))]
    return sorted((Copy(int(match[1]), match[2], path) for match, path in found), key=lambda copy: copy.number)


def lines_of(copy: Copy, exercise: Exercise) -> int:
    """Lines that the exercise's functions have in it; of the whole file where they cannot be read."""
    try:
        return sum(len(blank.source_of(copy.text, f, exercise.file).splitlines()) for f in exercise.functions)
    except MilestoneError:
        return len(copy.text.splitlines())


def apply_solution(lab: Lab, course: Course, exercise: Exercise) -> Path | None:
    """Write the milestone's own functions into the folder; returns the copy of what was there, if anything was."""
    return _put_functions(
        lab, exercise, solved_tree(course, lab.number)[exercise.file].data.decode("utf-8"), "solution"
    )


def reset(lab: Lab, exercise: Exercise) -> Path | None:
    """Empty the exercise's functions again, as they were handed out. A file that is gone, or that Python cannot read,
    comes back whole. Returns the copy of what was there, if anything was."""
    source: File = lab.base()[exercise.file]
    return _put_functions(lab, exercise, source.data.decode("utf-8"), "reset")


def restore(lab: Lab, exercise: Exercise, number: int) -> Path | None:
    """Write the functions of a copy into the folder again; returns the copy of what was there, if anything was.

    Raises:
        MilestoneError: there is no such copy.
    """
    every = copies(lab, exercise)
    found = next((copy for copy in every if copy.number == number), None)
    if found is None:
        known = ", ".join(str(copy.number) for copy in every) or "none"
        raise MilestoneError(f"{exercise.id} has no copy {number}; there are {known}")
    return _put_functions(lab, exercise, found.text, "restore")


def _put_functions(lab: Lab, exercise: Exercise, source: str, command: str) -> Path | None:
    text = lab.read(exercise.file)
    kept = _keep(lab, exercise, text, command)
    try:
        new = exercise.with_functions_of(text, source)
    except MilestoneError:  # the functions are not there to be replaced
        if command == "solution":
            raise
        new = source
    target = lab.folder / exercise.file
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(new.encode("utf-8"))
    return kept


def _keep(lab: Lab, exercise: Exercise, text: str, command: str) -> Path | None:
    if not text:
        return None
    every = copies(lab, exercise)
    if every and every[-1].text == text:
        return every[-1].path
    folder = lab.folder / KEPT / exercise.folder
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{every[-1].number + 1 if every else 1}-before-{command}.py"
    with kept.open("x", encoding="utf-8", newline="\n") as file:
        file.write(text)
    return kept
