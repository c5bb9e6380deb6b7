"""Proves that each milestone is what it says: a whole engine that passes its own tests, and knows nothing
of later ones.

Static first (chain, forbidden names, exercises), then each tree is written to a temporary folder, all of
its modules are imported there, and its tests m0..mK run there, in processes of their own. The tests are
pristine: written out from this repository. A slow test runs in the tree of its own milestone and at the root; the trees
between them leave it out. With `--steps` each step on the way (steps.py) is proved as well: its
modules are imported, and the tests that came with it run. Its last step with code is the milestone but for the notes.
The processes are forks of one that has imported MODULES and nothing of this project, see fork_server.py.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from milestones.chain import Course, is_managed
from milestones.fork_server import serving
from milestones.green import GreenRuns, digest
from milestones.labs.exercise import exercise_problems, load_exercises
from milestones.sources import Snapshot
from milestones.spec import Milestone, MilestoneError
from milestones.steps import Stage, stages, step_problems
from milestones.tree_runner import Result, TreeRunner
from milestones.trees import build_tree

AT_A_TIME = 2
UNCHANGED = "unchanged since its last green run"
# Imported once for all trees. What the tests' conftest.py sets before it imports them, SHARED sets here.
MODULES = ("torch", "transformers", "transformers.models.qwen3.modeling_qwen3", "pytest")
SHARED = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def verify(
    root: Path,
    course: Course,
    chosen: list[Milestone],
    *,
    run_all: bool = False,
    with_steps: bool = False,
    share: int = 1,
    seed: int = 0,
    green: GreenRuns | None = None,
    progress: Callable[[str], None] = lambda text: None,
    python: str = sys.executable,
) -> list[Result]:
    """Verify `chosen`, and the steps on the way to them, with processes of `python`. Where a milestone equals the root,
    the root's own test run has run its tests: they are only collected, unless `run_all`. With a `share` one tree in so
    many is drawn, and one step: the other trees are imported only. Of the tests that a drawn milestone has from earlier
    ones, one file in 2 * `share` is run. What `green` remembers is not run again. Two at a time: their tests use one
    core each."""

    def verify_one(milestone: Milestone, drawn: bool) -> Result:
        start = time.monotonic()
        result = Result(milestone, problems=static_problems(course, milestone))
        tree = build_tree(course, milestone)
        with tempfile.TemporaryDirectory(prefix=f"folovllm-{milestone.id}-") as scratch:
            runner = TreeRunner(root, Path(scratch).resolve(), tree, python)
            progress(f"{milestone.id}: importing every module")
            runner.import_modules(result)
            same = equals_root(course, tree)
            if same and not run_all:
                progress(f"{milestone.id}: collecting its tests")
                runner.run_tests(result, test_folders(milestone, tree), "--collect-only")
                result.note = "same files as the root: run by `make test`"
            elif not drawn:
                result.note = "imported only: its tests were not drawn"
            else:
                progress(f"{milestone.id}: running its tests")
                rng = random.Random(f"{seed}/{milestone.id}")
                paths = draw_tests(test_folders(milestone, tree), tree, 1 if share == 1 else 2 * share, rng)
                if is_remembered(key := digest(tree, paths)):
                    result.note = UNCHANGED
                else:
                    runner.run_tests(result, paths, slow=f"tests/m{milestone.number}")
                    remember(key, result)
        result.seconds = time.monotonic() - start
        return result

    def prove_step(stage: Stage) -> Result:
        if is_remembered(key := digest(stage.tree, stage.tests)):
            return Result(stage.milestone, stage.label, note=UNCHANGED)
        result = prove(root, stage, progress, python)
        remember(key, result)
        return result

    def is_remembered(key: str) -> bool:
        return green is not None and not run_all and green.has(key)

    def remember(key: str, result: Result) -> None:
        if green is not None and not result.problems:
            green.add(key)

    latest_first = sorted(chosen, key=lambda milestone: -milestone.number)  # they take longest
    rng = random.Random(seed)
    drawn = set(rng.sample(sorted(m.number for m in chosen), -(-len(chosen) // share)))
    with ThreadPoolExecutor(max_workers=min(AT_A_TIME, os.cpu_count() or 1)) as pool:
        tasks = {m.id: [pool.submit(verify_one, m, m.number in drawn)] for m in latest_first}
        if with_steps:
            for milestone in latest_first:
                row = [stage for stage in stages(course, milestone) if not stage.has_all_code]
                row = [row[index] for index in sorted(rng.sample(range(len(row)), -(-len(row) // share)))]
                tasks[milestone.id] = [*(pool.submit(prove_step, stage) for stage in row), *tasks[milestone.id]]
        return [task.result() for milestone in chosen for task in tasks[milestone.id]]


@contextlib.contextmanager
def forking_python() -> Iterator[str]:
    """A `python` for `verify` that has MODULES when it starts."""
    import torch

    environment = {**SHARED, **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}}
    if not torch.cuda.is_available():  # Triton's own kernels are made for its interpreter as it is imported
        environment.setdefault("TRITON_INTERPRET", "1")
    with (
        tempfile.TemporaryDirectory(prefix="folovllm-verify-") as scratch,
        serving(Path(scratch).resolve() / "bin", MODULES, environment) as python,
    ):
        yield str(python)


def prove(
    root: Path,
    stage: Stage,
    progress: Callable[[str], None] = lambda text: None,
    python: str = sys.executable,
) -> Result:
    """Run a step's tree: every module is imported, and the tests that came with the step pass."""
    start = time.monotonic()
    result = Result(stage.milestone, stage.label, note=stage.step.title)
    progress(f"{stage.label}: importing every module, running {len(stage.tests)} files of tests")
    with tempfile.TemporaryDirectory(prefix=f"folovllm-{stage.label}-") as scratch:
        runner = TreeRunner(root, Path(scratch).resolve(), stage.tree, python)
        if stage.tests:
            runner.run_tests(result, stage.tests, with_imports=True)
        else:
            runner.import_modules(result)
    result.seconds = time.monotonic() - start
    return result


def test_folders(milestone: Milestone, tree: Snapshot) -> list[str]:
    """Where a milestone's tests lie: m0's to its own."""
    folders = [f"tests/m{number}" for number in range(milestone.number + 1)]
    return [folder for folder in folders if any(path.startswith(f"{folder}/") for path in tree)]


def draw_tests(folders: list[str], tree: Snapshot, share: int, rng: random.Random) -> list[str]:
    """What pytest is given: the last folder, and of the files in those before it one in `share`."""
    if share == 1:
        return folders
    *earlier, own = folders
    files = sorted(
        path for path in tree if path.startswith(tuple(f"{folder}/" for folder in earlier))
        and PurePosixPath(path).match("test_*.py")
    )  # fmt: skip
    return [*rng.sample(files, -(-len(files) // share)), own]


def equals_root(course: Course, tree: Snapshot) -> bool:
    """Whether the tree's code and tests are, file for file, the root's."""
    shared = {path: file for path, file in course.snapshot.items() if is_managed(path)}
    return shared == {path: file for path, file in tree.items() if is_managed(path)}


def static_problems(course: Course, milestone: Milestone) -> list[str]:
    tree = course.tree(milestone.number)
    found = [*forbidden_names(milestone, tree), *broken_exercises(course, milestone, tree)]
    return [*found, *step_problems(course, milestone)]


def forbidden_names(milestone: Milestone, tree: Snapshot) -> list[str]:
    """Places where the code names what only a later milestone has."""
    if not milestone.forbidden:
        return []
    word = re.compile(r"\b(" + "|".join(map(re.escape, milestone.forbidden)) + r")\b")
    found = []
    for path, file in tree.items():
        if path.endswith(".py"):
            for number, line in enumerate(file.data.decode("utf-8").split("\n"), 1):
                if match := word.search(line):
                    found.append(f"{path}:{number}: {match.group(1)} belongs to a later milestone")
    return found


def broken_exercises(course: Course, milestone: Milestone, tree: Snapshot) -> list[str]:
    """What is wrong with the milestone's exercises and can be seen without running anything."""
    try:
        return exercise_problems(load_exercises(course.snapshot, milestone.number), tree)
    except MilestoneError as error:
        return [str(error)]


def choose(course: Course, names: list[str]) -> list[Milestone]:
    """The milestones called so; all of them when none is named."""
    if not names:
        return course.milestones
    chosen = [course.get(name) for name in names]
    if len({m.id for m in chosen}) < len(chosen):
        raise MilestoneError(f"each milestone once, got {' '.join(names)}")
    return chosen
