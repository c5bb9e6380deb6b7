"""`start --from FILE`: what was written in the pages of the site, as their button "Take along" saves it.

{"exercises": {"m0/02-fork": {"text": "class Sequence: …", "solved": true}, …}}
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from milestones.chain import Course
from milestones.labs.exercise import Exercise, load_exercises
from milestones.labs.lab import Lab, remember
from milestones.labs.onward import carry_on
from milestones.labs.start import start
from milestones.spec import MilestoneError

Saved = dict[str, dict[str, Any]]


def read_saved(file: Path) -> Saved:
    """The exercises in the file, by id."""
    try:
        saved: Saved = json.loads(file.read_text(encoding="utf-8"))["exercises"]
        if all(isinstance(entry["text"], str) and isinstance(entry["solved"], bool) for entry in saved.values()):
            return saved
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass
    raise MilestoneError(f"--from must be a folder, or what the pages' `Take along` saved; {file} is neither")


def bring(root: Path, course: Course, lab: Lab, saved: Saved) -> Iterator[tuple[str, Exercise]]:
    """Put what was written in the pages into a new folder: of its own milestone all that Python can read, of those
    before what is solved, as carry_on() does it. Gives what became of each exercise."""
    for number in range(lab.number):
        exercises = [e for e in load_exercises(course.snapshot, number) if saved.get(e.id, {}).get("solved")]
        if exercises:
            with tempfile.TemporaryDirectory(prefix="folovllm-pages-") as name:
                before = start(root, course, course.get(f"m{number}"), Path(name) / f"m{number}", lab.language)
                for exercise in exercises:
                    _write(before, exercise, saved[exercise.id]["text"])
                    before.done(exercise).passed = before.digest(exercise)
                earlier = list(lab.carried)
                yield from carry_on(lab, before, course)
                lab.carried = list(dict.fromkeys([*earlier, *lab.carried]))
    for exercise in load_exercises(course.snapshot, lab.number):
        if exercise.id in saved:
            yield ("carried" if _write(lab, exercise, saved[exercise.id]["text"]) else "left_refused"), exercise
    lab.save()
    remember(root, lab.folder)


def _write(lab: Lab, exercise: Exercise, text: str) -> bool:
    """Whether Python can read it, so that it is in the folder."""
    try:
        whole = exercise.written_into(lab.read(exercise.file), text)
    except (SyntaxError, MilestoneError):
        return False
    (lab.folder / exercise.file).write_bytes(whole.encode("utf-8"))
    return True
