"""`start`: a milestone as a folder with its exercises emptied; `update`: later fixes of the course, merged into it."""

from __future__ import annotations

import locale
import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from milestones.chain import Course
from milestones.labs.exercise import Exercise, load_exercises, solved_tree
from milestones.labs.kept import apply_solution
from milestones.labs.lab import Lab, course_digest, remember
from milestones.labs.prove import blanked_tree
from milestones.sources import File, merge
from milestones.spec import Milestone, MilestoneError
from milestones.trees import lab_readme, write_repository, write_tree

LAUNCHER = Path(__file__).with_name("launcher")


def default_language() -> str:
    """zh where the person's environment says so, else en."""
    told = os.environ.get("LC_ALL") or os.environ.get("LANG") or (locale.getlocale()[0] or "")
    return "zh" if told.lower().startswith(("zh", "chinese")) else "en"


def install_command(root: Path) -> str:
    """What a person types to have pytest, rich and torch, with the versions that CI ran; root: the clone."""
    return f"python -m pip install -c {shlex.quote(f'{root}/constraints.txt')} -e {shlex.quote(f'{root}[test]')}"


def lab_tree(course: Course, milestone: Milestone, language: str) -> dict[str, File]:
    """The tree as a learner gets it: exercises emptied, a README in their language, and the tool."""
    if not (exercises := load_exercises(course.snapshot, milestone.number)):
        raise MilestoneError(f"{milestone.id} has no exercises; `python -m milestones checkout {milestone.id} DIR`")
    own = solved_tree(course, milestone.number, exercises)
    tree = blanked_tree(own, exercises)
    titles = [(e.id, e.pages[language].title, e.file) for e in exercises]
    tree["README.md"] = File(lab_readme(milestone, tree, titles, language).encode("utf-8"))
    for name in ("__init__.py", "__main__.py"):
        tree[f"milestones/{name}"] = File((LAUNCHER / name).read_bytes())
    return tree


def start(root: Path, course: Course, milestone: Milestone, folder: Path, language: str) -> Lab:
    """Write `milestone` with its exercises emptied into a new or empty folder."""
    tree = lab_tree(course, milestone, language)
    write_repository(tree, folder, f"{milestone.label}: exercises")
    folder = folder.resolve()
    lab = Lab(folder, milestone.id, language, str(root), course_digest(course, milestone.number))
    lab.set_base(tree)
    lab.save()
    remember(root, folder)
    return lab


def solve(lab: Lab, course: Course, exercises: list[Exercise]) -> None:
    """Put the course's code into these, and commit it."""
    for exercise in exercises:
        apply_solution(lab, course, exercise)
        lab.done(exercise).passed, lab.done(exercise).solution = lab.digest(exercise), "applied"
    if exercises:
        lab.save()
        lab.commit("Solved already")


@dataclass
class Update:
    """What `update` did, by path."""

    written: list[str] = field(default_factory=list)
    merged: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # the learner's: the course's version lies in .folovllm/update/


def update(lab: Lab, course: Course) -> Update:
    """Bring later fixes of the course into the folder. Where both changed the same lines, the learner's stay, and the
    rest of the file is merged: the folder is not up to date before the next `update` finds nothing to keep."""
    old, new = lab.base(), lab_tree(course, course.get(lab.milestone), lab.language)
    done, base = Update(), dict(new)
    for path in sorted(old.keys() | new.keys()):
        before, after = old.get(path), new.get(path)
        if before == after:
            continue
        here = lab.folder / path
        mine = here.read_bytes() if here.is_file() else None
        if mine == (before.data if before else None):
            if after is None:
                here.unlink()
                done.deleted.append(path)
            else:
                write_tree({path: after}, lab.folder)
                done.written.append(path)
        elif after is not None and mine == after.data:
            continue
        elif before and after and mine is not None and (merged := merge(mine, before.data, after.data)) is not None:
            here.write_bytes(merged)
            done.merged.append(path)
        else:
            done.kept.append(path)
            if before and after and mine is not None:
                rest = merge(mine, before.data, after.data, "--ours")
                here.write_bytes(mine if rest is None else rest)
            if after is not None:
                write_tree({path: after}, lab.folder / ".folovllm" / "update")
            if before is not None:
                base[path] = before  # so that the next update tries again
            else:
                base.pop(path, None)
    lab.set_base(base)
    if not done.kept:
        lab.course = course_digest(course, lab.number)
        lab.save()
    return done
