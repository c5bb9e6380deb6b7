"""`check`: grades the first exercise that is not solved, or the one named, and writes down how it went."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from milestones.chain import Course
from milestones.labs.exercise import Exercise, solved_tree
from milestones.labs.grade import Grade, grade
from milestones.labs.lab import Lab, course_digest
from milestones.labs.onward import carried_exercises
from milestones.labs.words import say
from milestones.sources import File, Snapshot
from milestones.trees import write_tree


@dataclass
class Checked:
    """A grade with what a learner has to be told beside it."""

    exercise: Exercise
    grade: Grade
    outside: list[str] = field(default_factory=list)  # changed files of the package that hold no exercise
    tests: list[str] = field(default_factory=list)  # changed tests
    outdated: bool = False  # the course has moved on since the folder was handed out


def check(lab: Lab, course: Course, exercises: list[Exercise], exercise: Exercise) -> Checked:
    """Grade one exercise of the folder, with this repository's tests."""
    tree = solved_tree(course, lab.number, exercises)
    base = lab.base()
    others = outside(lab, course, exercises)
    if not (lab.folder / exercise.file).is_file():
        gone = say(lab.language, "file_gone", file=exercise.file, name=exercise.name)
        result = Grade("broken", problem=gone)
    elif others:
        with tempfile.TemporaryDirectory(prefix="folovllm-lab-", ignore_cleanup_errors=True) as name:
            copy = Path(name).resolve()
            shutil.copytree(lab.folder / "folovllm", copy / "folovllm", ignore=shutil.ignore_patterns("__pycache__"))
            write_tree({path: base[path] for path in others}, copy)
            result = grade(exercise, copy, tree, language=lab.language)
    else:
        result = grade(exercise, lab.folder, tree, language=lab.language)
    done = lab.done(exercise)
    done.checks += 1
    if result.outcome == "solved":
        done.passed = lab.digest(exercise)
        if result.figure is not None and done.figures[-1:] != [result.figure]:
            done.figures.append(result.figure)
    elif done.passed == lab.digest(exercise):
        done.passed = ""  # something else broke it
    lab.save()
    tests = [path for path in changed_files(lab.folder, base) if path.startswith("tests/")]
    return Checked(exercise, result, others, tests, lab.course != course_digest(course, lab.number))


def outside(lab: Lab, course: Course, exercises: list[Exercise]) -> list[str]:
    """Changed files of the package that hold no exercise."""
    own = {e.file for e in [*exercises, *carried_exercises(lab, course)]}
    changed = changed_files(lab.folder, lab.base())
    return [path for path in changed if path.startswith("folovllm/") and path not in own]


def changed_files(folder: Path, base: Snapshot) -> list[str]:
    """Files handed out that are other ones now, or gone; line endings do not count."""
    return [path for path, file in base.items() if not _same(folder / path, file)]


def _same(path: Path, file: File) -> bool:
    try:
        return path.read_bytes().replace(b"\r\n", b"\n") == file.data.replace(b"\r\n", b"\n")
    except OSError:
        return False
