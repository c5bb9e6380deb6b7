"""The short row of commits that leads to a milestone: one idea each, in the order of dependence.

    m2 ──▶ M3.1 the pool ──▶ M3.2 attention through block tables ──▶ … ──▶ M3.8 the notes = m3

No version in between is stored. A step's tree is the milestone before, with the milestone's files of this step and
of the steps before it. So a file that the milestone changes has one of two contents, and comes with the idea that
needs it last. Each file of the milestone belongs to exactly one step; its notes and figures (`docs/`) come in a last
step, which no milestone.toml writes down.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import PurePosixPath

from milestones.chain import Course
from milestones.imports import unresolved_imports
from milestones.sources import File
from milestones.spec import NOTES, Milestone, Step, matches
from milestones.trees import build_tree, run_commands

README = "README.md"
MOST_LINES = 1_500  # of code and tests in one step: as much as a reader takes in at a sitting
CODE = (".py", ".pyi", ".cpp", ".h")


@dataclass(frozen=True)
class Stage:
    """A step with all that it brings, and the tree after it."""

    milestone: Milestone
    number: int  # from 1
    step: Step
    paths: list[str]  # that arrive, change or go
    tree: dict[str, File]
    lines: int  # of code and tests that the tree before does not have
    is_last: bool

    @property
    def label(self) -> str:
        return f"M{self.milestone.number}.{self.number}"

    @property
    def has_all_code(self) -> bool:
        """Whether nothing but notes is missing, so that a run of the milestone's tests is a run of this tree's."""
        return self.number >= len(self.milestone.steps)

    @property
    def tests(self) -> list[str]:
        """The test files that come with it."""
        return [p for p in self.paths if p in self.tree and _is_test(p)]

    @property
    def message(self) -> str:
        """The commit's: what the idea is, what to read first and what to run."""
        step = self.step
        text = f"{self.label} {step.title}\n\n{step.body}\n\nRead first: {', '.join(step.read)}\nSee it: {step.show}\n"
        return f"{text}\n{self.milestone.label}. {self.milestone.summary['en']}\n" if self.is_last else text


def stages(course: Course, milestone: Milestone) -> list[Stage]:
    """The row of `milestone`; empty when it has no steps."""
    if not milestone.steps:
        return []
    number = milestone.number
    before = build_tree(course, course.milestones[number - 1]) if number else {}
    whole = build_tree(course, milestone)
    owners = {path: owned[0] for path, owned in owners_of(course, milestone).items()}
    steps = list(milestone.steps)
    if notes := [path for path in owners if path.startswith(NOTES)]:
        steps.append(_notes(milestone, whole, notes))
    tree, row = dict(before), []
    for i, step in enumerate(steps):
        paths = sorted(path for path, owner in owners.items() if owner == i)
        lines = sum(new_lines(tree.get(path), whole[path]) for path in paths if path in whole and path.endswith(CODE))
        for path in paths:
            if path in whole:
                tree[path] = whole[path]
            else:
                tree.pop(path, None)
        is_last = i == len(steps) - 1
        if is_last:
            tree[README] = whole[README]  # it speaks of the whole milestone
        row.append(Stage(milestone, i + 1, step, paths, dict(sorted(tree.items())), lines, is_last))
    return row


def new_lines(old: File | None, new: File) -> int:
    """How many lines of `new` are not in `old`, wherever they are."""
    lines = Counter(new.data.splitlines())
    if old is not None:
        lines -= Counter(old.data.splitlines())
    return lines.total()


def _notes(milestone: Milestone, tree: dict[str, File], paths: list[str]) -> Step:
    index = f"{NOTES}en/{milestone.id}/index.md"
    return Step(
        title="Explain it in notes",
        body="What the steps before do and why, in English and in Chinese, with figures, questions and measurements.",
        read=[index if index in paths else paths[0]],
        show=run_commands(milestone, tree)[0],
        files=[],
        tests=[],
    )


def owners_of(course: Course, milestone: Milestone) -> dict[str, list[int]]:
    """Each path that the milestone brings, changes or takes away -> the places of the steps that claim it, from 0.

    An exact path beats a pattern. What no step names falls to the one with `rest`, or else to the last; notes fall to
    the step behind that one.
    """
    steps = milestone.steps
    rest = next((i for i, step in enumerate(steps) if step.rest), len(steps) - 1)
    number = milestone.number
    gone = course.tree(number - 1).keys() - course.tree(number).keys() if number else set()
    owners = {}
    for path in sorted({*course.arriving(number), *course.changed(number), *gone}):
        if path.startswith(NOTES):
            owners[path] = [len(steps)]
            continue
        exact = [i for i, step in enumerate(steps) if path in (*step.files, *step.tests)]
        owners[path] = exact or [i for i, s in enumerate(steps) if _claims(s, path)] or [rest]
    return owners


def step_problems(course: Course, milestone: Milestone) -> list[str]:
    """All that is wrong with the steps and can be seen without running anything, one line each."""
    if not milestone.steps:
        return []
    where = f"milestones/{milestone.id}/milestone.toml"
    owners = owners_of(course, milestone)
    found = []
    for path, claims in owners.items():
        if len(claims) > 1:
            places = " and ".join(str(i + 1) for i in claims)
            found.append(f"{where}: {path} is claimed by steps {places}; one has to let go")
    for i, step in enumerate(milestone.steps, 1):
        for pattern in (*step.files, *step.tests):
            if not any(matches(pattern, path) for path in owners):
                found.append(f"{where}: step {i}: {pattern!r} matches no file that arrives or changes here")
    number = milestone.number
    known = set(unresolved_imports(course.tree(number - 1))) if number else set()
    for stage in stages(course, milestone):
        place = f"{where}: step {stage.number}"
        if not stage.paths:
            found.append(f"{place}: brings no file")
        if stage.lines > MOST_LINES:
            found.append(f"{place}: must bring at most {MOST_LINES:,} lines of code and tests, got {stage.lines:,}")
        for path in (*stage.step.read, *_named_paths(stage.step.show)):
            if path not in stage.tree and not any(p.startswith(f"{path.rstrip('/')}/") for p in stage.tree):
                found.append(f"{place}: {path} is not there yet")
        unresolved = unresolved_imports(stage.tree)
        found += [f"{place}: {problem}" for problem in unresolved if problem not in known]
        known.update(unresolved)  # once, at the step that brings it
    return found


def _claims(step: Step, path: str) -> bool:
    return any(matches(pattern, path) for pattern in (*step.files, *step.tests))


def _is_test(path: str) -> bool:
    name = PurePosixPath(path).name
    return path.startswith("tests/") and name.startswith("test_") and name.endswith(".py")


def _named_paths(command: str) -> list[str]:
    """Words of a command that name a test or an example."""
    return [word.partition("::")[0] for word in command.split() if word.startswith(("tests/", "examples/"))]
