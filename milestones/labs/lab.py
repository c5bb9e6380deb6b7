"""A learner's folder: which milestone it is, how far one has come, and what it was like when it was handed out.

DIR/.folovllm/lab.json     milestone, language, the clone, and per exercise what happened; ignored by git
DIR/.folovllm/handed-out.zip     the tree as handed out: what `check` compares with, and `update` merges against
clone .cache/labs.json     the folders started from this clone, the one used last at the end
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from milestones.chain import Course
from milestones.labs import blank
from milestones.labs.exercise import LABS, Exercise, load_exercises
from milestones.labs.words import say
from milestones.sources import IDENTITY, File, Snapshot, commit, git
from milestones.spec import LANGUAGES, MilestoneError

STATE = ".folovllm/lab.json"
HANDED_OUT = ".folovllm/handed-out.zip"
REGISTRY = ".cache/labs.json"


@dataclass
class Done:
    """What a learner did with one exercise."""

    passed: str = ""  # digest of the functions that passed; "" if none did
    checks: int = 0
    hints: int = 0  # seen
    solution: str = ""  # "shown", "applied"
    predictions: list[str] = field(default_factory=list)  # letters, question by question
    figures: list[float] = field(default_factory=list)  # of an open task: with which it was solved, the last at the end


@dataclass
class Lab:
    """An open folder; `save` after a change."""

    folder: Path
    milestone: str
    language: str
    repository: str
    course: str  # digest of what was handed out
    exercises: dict[str, Done] = field(default_factory=dict)
    carried: list[str] = field(
        default_factory=list
    )  # exercises of earlier milestones that the learner solved: onward.py

    @property
    def number(self) -> int:
        return int(self.milestone[1:])

    def done(self, exercise: Exercise) -> Done:
        return self.exercises.setdefault(exercise.folder, Done())

    def save(self) -> None:
        state = asdict(self)
        del state["folder"]
        target = self.folder / STATE
        target.parent.mkdir(parents=True, exist_ok=True)
        (target.parent / ".gitignore").write_text("*\n", encoding="utf-8")
        new = target.with_suffix(".new")
        new.write_text(json.dumps(state, indent=2, ensure_ascii=False), encoding="utf-8")
        new.replace(target)  # whole or not at all

    def read(self, path: str) -> str:
        """A file of the folder as text; "" if it is not there."""
        try:
            return (self.folder / path).read_bytes().decode("utf-8").replace("\r\n", "\n")
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError as error:
            raise MilestoneError(f"{self.folder / path} must be UTF-8: {error.reason} at byte {error.start}") from error

    def digest(self, exercise: Exercise) -> str:
        """Of the exercise's functions as they stand in the folder; of the whole file where they are no functions."""
        return self._digest_of(exercise, self.read(exercise.file))

    def is_written(self, exercise: Exercise, handed_out: Snapshot) -> bool:
        """Whether its functions are other ones than were handed out."""
        return self.digest(exercise) != self._digest_of(exercise, handed_out[exercise.file].data.decode("utf-8"))

    def _digest_of(self, exercise: Exercise, text: str) -> str:
        try:
            parts = [blank.source_of(text, function, exercise.file) for function in exercise.functions]
        except MilestoneError:
            parts = [text]
        return _digest(parts)

    def is_solved(self, exercise: Exercise) -> bool:
        """Whether its functions passed, and have not changed since."""
        passed = self.done(exercise).passed
        return bool(passed) and passed == self.digest(exercise)

    def base(self) -> dict[str, File]:
        """The tree as handed out."""
        if not (self.folder / HANDED_OUT).exists():  # a folder that an earlier version of the course made
            return commit(self.folder, "refs/folovllm/base")
        with zipfile.ZipFile(self.folder / HANDED_OUT) as file:
            return {name: File(file.read(name)) for name in file.namelist()}

    def commit(self, title: str) -> None:
        """Commit all there is, where the folder is a repository."""
        if (self.folder / ".git").exists():
            git(self.folder, "add", "--all")
            options = ["--quiet", "--no-gpg-sign", "--allow-empty", "--message", title]
            git(self.folder, "commit", *options, env=IDENTITY)

    def set_base(self, tree: Snapshot) -> None:
        (self.folder / HANDED_OUT).parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(self.folder / HANDED_OUT, "w", zipfile.ZIP_DEFLATED) as file:
            for name, content in tree.items():
                file.writestr(name, content.data)


def open_lab(root: Path, folder: Path) -> Lab:
    """The lab in `folder`, which from now on belongs to the clone at `root`."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
        entries = {name: Done(**entry) for name, entry in state.pop("exercises").items()}
        lab = Lab(folder, **state, exercises=entries)
    except FileNotFoundError as error:
        raise MilestoneError(f"{folder} was not made by `start`: it has no {STATE}") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise MilestoneError(f"{folder / STATE} cannot be read: {error}; delete it and use `start` anew") from error
    if lab.repository != str(root):
        lab.repository = str(root)
        lab.save()
    return lab


def find_lab(root: Path, folder: Path | None, language: str | None = None) -> Lab:
    """The lab to work on: the folder named, else the one we stand in, else the one used last."""
    if language is not None and language not in LANGUAGES:
        raise MilestoneError(f"--lang must be {' or '.join(LANGUAGES)}, got {language!r}")
    if folder is not None:
        lab = open_lab(root, folder.resolve())
    elif here := _around(Path.cwd()):
        lab = open_lab(root, here)
    elif known := known_labs(root):
        lab = open_lab(root, known[-1])
        if Path.cwd() != root:
            print(say(language or lab.language, "used_last", folder=lab.folder), file=sys.stderr)
    else:
        raise MilestoneError("no exercises have been started: python -m milestones start m0 DIR")
    remember(root, lab.folder)
    if language is not None:
        lab.language = language
        lab.save()
    return lab


def _around(place: Path) -> Path | None:
    return next((folder for folder in (place, *place.parents) if (folder / STATE).is_file()), None)


def known_labs(root: Path) -> list[Path]:
    """Folders started from this clone that are still there, the one used last at the end."""
    try:
        names = json.loads(_registry(root).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return []
    return [Path(name) for name in names if (Path(name) / STATE).is_file()]


def remember(root: Path, folder: Path) -> None:
    """Put `folder` at the end of the clone's list."""
    names = [str(path) for path in known_labs(root) if path != folder]
    with contextlib.suppress(OSError):  # a clone that may not be written to: then the folder is named, or stood in
        _registry(root).parent.mkdir(exist_ok=True)
        _registry(root).write_text(json.dumps([*names, str(folder)], ensure_ascii=False), encoding="utf-8")


def _registry(root: Path) -> Path:
    return root / REGISTRY


def exercises_of(course: Course, lab: Lab) -> list[Exercise]:
    course.get(lab.milestone)
    found = load_exercises(course.snapshot, lab.number)
    if not found:
        raise MilestoneError(f"{lab.milestone} has no exercises in this clone")
    return found


def course_digest(course: Course, number: int) -> str:
    """Of all that grading milestone `number` depends on: its package, and its exercises."""
    snapshot: Snapshot = course.snapshot
    labs = {path: file for path, file in snapshot.items() if path.startswith(f"{LABS}/m{number}/")}
    package = {path: file for path, file in course.tree(number).items() if path.startswith(("folovllm/", "tests/"))}
    return _digest([f"{path}\n{hashlib.sha256(file.data).hexdigest()}" for path, file in {**labs, **package}.items()])


def choose(exercises: list[Exercise], name: str, language: str) -> Exercise:
    """The exercise that a person calls `name`."""
    for exercise in exercises:
        if exercise.is_called(name):
            return exercise
    known = ", ".join(exercise.folder for exercise in exercises)
    raise MilestoneError(say(language, "no_such", name=repr(name), known=known))


def first_open(lab: Lab, exercises: list[Exercise]) -> Exercise | None:
    return next((exercise for exercise in exercises if not lab.is_solved(exercise)), None)


def following(course: Course, lab: Lab) -> str | None:
    """The next milestone that has exercises."""
    later = [m for m in course.milestones if m.number > lab.number and load_exercises(course.snapshot, m.number)]
    return later[0].id if later else None


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8")).hexdigest()[:16]
