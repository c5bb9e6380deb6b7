"""How large each milestone is, and how large it may get.

    python -m milestones size

    lines and files    of the package in a milestone's tree: Python, with docstrings and blank lines; C++ apart
    a decode step      the files and functions that it enters (path.py)
    root               the newest milestone and what stands around it: serving, watching, measuring (AFTER in chain.py)

A reader keeps a milestone in the head, so each has a limit, and a change that passes one has to make room first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from milestones import path
from milestones.chain import Course, comes_after
from milestones.sources import Snapshot

CPP = (".cpp", ".h")


@dataclass(frozen=True)
class Size:
    """What there is, or (None: no limit) the most that there may be."""

    lines: int | None = None
    files: int | None = None
    cpp: int | None = None
    step_files: int | None = None
    step_functions: int | None = None


LIMITS = {
    "m0": Size(lines=1_385),
    "m1": Size(lines=4_370, files=51, step_files=18, step_functions=53),
    "m2": Size(lines=5_905),
    "m3": Size(lines=7_525, step_files=28, step_functions=78),
    "m4": Size(lines=11_570, cpp=1_900),
    "m5": Size(lines=11_825, cpp=1_900),
    "m6": Size(lines=12_665, cpp=1_900, step_files=29, step_functions=89),
    "m7": Size(lines=15_315, cpp=2_740),
    "m8": Size(lines=16_970, cpp=2_845),
    "m9": Size(lines=18_070, cpp=2_980),
    "m10": Size(lines=18_645, cpp=3_066),
    "root": Size(lines=37_300, cpp=3_125),
}


@dataclass(frozen=True)
class Row:
    """One line of the table. `around` is what the root has beside its newest milestone."""

    name: str
    size: Size
    around: Size | None = None

    def excesses(self) -> list[str]:
        """Where a limit is passed, one line each."""
        limit = LIMITS.get(self.name, Size())
        found = []
        for field in ("lines", "files", "cpp", "step_files", "step_functions"):
            is_, most = getattr(self.size, field), getattr(limit, field)
            if is_ is not None and most is not None and is_ > most:
                found.append(f"{self.name}: {field} must be at most {most:,}, got {is_:,}")
        return found


def measure(course: Course, *, steps: bool = True) -> Iterator[Row]:
    """A row for each milestone, then the root's. steps: walk through the decode steps that have a limit (seconds each).

    Raises:
        MilestoneError: a milestone's engine failed.
    """
    for milestone in course.milestones:
        limit = LIMITS.get(milestone.id, Size())
        walk = path.measure(course, milestone) if steps and limit.step_files is not None else None
        yield Row(milestone.id, size_of(course.tree(milestone.number), walk))
    around = {name: file for name, file in course.snapshot.items() if comes_after(name)}
    yield Row("root", size_of(course.snapshot), size_of(around))


def size_of(tree: Snapshot, walk: path.Walk | None = None) -> Size:
    """The size of the package in `tree`."""
    package = {name: file.data.count(b"\n") for name, file in tree.items() if name.startswith("folovllm/")}
    python = [lines for name, lines in package.items() if name.endswith(".py")]
    return Size(
        lines=sum(python),
        files=len(python),
        cpp=sum(lines for name, lines in package.items() if name.endswith(CPP)),
        step_files=None if walk is None else walk.files,
        step_functions=None if walk is None else walk.functions,
    )
