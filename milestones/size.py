"""How large each milestone is, and how large it may get.

    python -m milestones size

    lines and files    of the package in a milestone's tree: Python, with docstrings and blank lines; C++ apart
    a decode step      the files and functions that it enters (path.py)
    around             what stands around the last milestone's engine: serving, watching, measuring (AFTER in chain.py)
    root               the whole package
    milestones, tests  Python files; of milestones/ all but the exercises

A reader keeps a milestone in the head, so each has a limit, and a change that passes one has to make room first. LIMITS
are never moved. What does not meet one yet is in NOT_YET with its size, and may not grow.
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


FIELDS = ("lines", "files", "cpp", "step_files", "step_functions")
LIMITS = {
    "m0": Size(lines=1_400),
    "m1": Size(lines=4_400, files=51, step_files=18, step_functions=53),
    "m2": Size(lines=5_900),
    "m3": Size(lines=7_500, step_files=27, step_functions=76),
    "m4": Size(lines=11_500, cpp=1_900),
    "m5": Size(lines=11_800, cpp=1_900),
    "m6": Size(lines=12_600, cpp=1_900, step_files=29, step_functions=82),
    "m8": Size(lines=16_850, cpp=2_870),
    "m10": Size(lines=18_650, cpp=3_091),
    "m11": Size(lines=26_092, cpp=3_150),
    "m12": Size(lines=26_945, cpp=3_230),
    "m13": Size(lines=27_630, cpp=3_230),
    "around": Size(lines=12_286),
    "root": Size(lines=39_885, cpp=3_230),
    "milestones": Size(lines=54_549),
    "tests": Size(lines=65_190),
}
NOT_YET = {
    "m6": Size(step_functions=84),
    "m11": Size(lines=26_092),
    "m12": Size(lines=26_945),
    "m13": Size(lines=27_630),
    "around": Size(lines=12_286),
    "root": Size(lines=39_885),
    "milestones": Size(lines=54_549),
    "tests": Size(lines=65_190),
}
"""What is beyond its limit still: today's size, which may not grow."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    size: Size

    def beyond(self) -> list[str]:
        """Where the limit is not met, one line each: how far it is."""
        limit = LIMITS.get(self.name, Size())
        return [
            f"{self.name}: {field} must be at most {most:,}, got {is_:,}"
            for field in FIELDS
            if (most := getattr(limit, field)) is not None and (is_ := getattr(self.size, field) or 0) > most
        ]

    def excesses(self) -> list[str]:
        """Of these, what has grown besides."""
        known = NOT_YET.get(self.name, Size())
        grown = [field for field in FIELDS if (getattr(self.size, field) or 0) > (getattr(known, field) or 0)]
        return [line for line in self.beyond() if line.split()[1] in grown]


def measure(course: Course, *, steps: bool = True) -> Iterator[Row]:
    """A row for each milestone, then what is around, the root's, and the folders'. steps: walk through the decode steps
    that have a limit (seconds each).

    Raises:
        MilestoneError: a milestone's engine failed.
    """
    for milestone in course.milestones:
        limit = LIMITS.get(milestone.id, Size())
        walk = path.measure(course, milestone) if steps and limit.step_files is not None else None
        yield Row(milestone.id, size_of(course.tree(milestone.number), walk))
    yield Row("around", size_of({name: file for name, file in course.snapshot.items() if comes_after(name)}))
    yield Row("root", size_of(course.snapshot))
    for folder, left_out in (("milestones", "milestones/labs/m"), ("tests", "")):
        files = {name: file for name, file in course.snapshot.items() if not (left_out and name.startswith(left_out))}
        yield Row(folder, size_of(files, folder=folder))


def size_of(tree: Snapshot, walk: path.Walk | None = None, *, folder: str = "folovllm") -> Size:
    """The size of the package in `tree`, or of another folder."""
    package = {name: file.data.count(b"\n") for name, file in tree.items() if name.startswith(f"{folder}/")}
    python = [lines for name, lines in package.items() if name.endswith(".py")]
    return Size(
        lines=sum(python),
        files=len(python),
        cpp=sum(lines for name, lines in package.items() if name.endswith(CPP)),
        step_files=None if walk is None else walk.files,
        step_functions=None if walk is None else walk.functions,
    )
