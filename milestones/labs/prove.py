"""Proves an exercise: blanked it fails its own test, each wrong solution is refused with its message, each right one is
accepted, the milestone's own code solves it although all exercises after it are still blank, and in the newest
milestone that has it unchanged (`start --from` carries it there), and no small fault in that code passes (mutants.py).

    python -m milestones prove m3/01                 one, while you write it
    python -m milestones prove m3/01 --mutants       with all of its mutants
    python -m milestones prove --mutants 40          all exercises, with forty mutants of all
"""

from __future__ import annotations

import os
import py_compile
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from milestones.chain import Course
from milestones.fork_server import serving
from milestones.labs.answers import FILE, Answer, answer_of, write_answers
from milestones.labs.exercise import BEST, LABS, Exercise, brought, exercise_problems, load_exercises, solved_tree
from milestones.labs.grade import INSIDE, Grade, grade
from milestones.labs.mutants import Mutant, equivalents, mutants
from milestones.labs.onward import is_same
from milestones.sources import File, Snapshot
from milestones.spec import MilestoneError
from milestones.trees import write_tree

AT_A_TIME = min(os.cpu_count() or 2, 4)
PATIENCE = 4  # a proof must not fail because the machine is slow, or busy with others
# Imported once for all judges: most of a judge's seconds would be these.
MODULES = ("torch", "transformers", "pytest")


@dataclass
class Proof:
    """What proving one exercise found."""

    exercise: Exercise
    problems: list[str] = field(default_factory=list)
    tests: int = 0
    mutants: int = 0  # that were refused
    answers: dict[str, Answer] = field(default_factory=dict)  # of the wrong solutions that were judged
    seconds: float = 0.0  # of grading the solution


def prove(
    course: Course,
    chosen: list[Exercise],
    progress: Callable[[str], None] = lambda text: None,
    modules: Sequence[str] = MODULES,
    *,
    count: int = 0,
    share: int = 1,
    seed: int = 0,
    recorded: bool = True,
) -> tuple[list[Proof], list[str]]:
    """Proofs of `chosen`, and the problems of whole milestones: a blanked tree that does not import. The judges share
    a process that has imported `modules`, see `fork_server`; each runs in a fork of it.

    count: how many mutants are to be refused, -1 for all. share: one in so many of the wrong and the right solutions
    is judged. Both are drawn by `seed`. recorded: each mistakes.json must say what came of its wrong solutions.
    """
    rng = random.Random(seed)
    trees = {number: solved_tree(course, number) for number in sorted({e.milestone for e in chosen})}
    rows = {number: load_exercises(course.snapshot, number) for number in trees}
    proofs = [Proof(e, exercise_problems([e], trees[e.milestone])) for e in chosen]
    faults = [(p, m) for p in proofs if not p.problems for m in _mutants_of(p, trees[p.exercise.milestone])]
    if 0 <= count < len(faults):
        faults = rng.sample(faults, count)
    sound = [proof for proof in proofs if not proof.problems]
    others = [(proof, name) for proof in sound for name in [*proof.exercise.wrong, *proof.exercise.right]]
    others = rng.sample(others, -(-len(others) // share))
    newest = [_newest_with(course, proof.exercise, trees[proof.exercise.milestone]) for proof in sound]
    with (
        tempfile.TemporaryDirectory(prefix="folovllm-prove-") as name,
        serving(Path(name, "bin"), modules, _without_path()) as python,
        ThreadPoolExecutor(AT_A_TIME) as pool,
    ):
        scratch = Path(name).resolve()
        numbers = {*trees, *(number for number in newest if number is not None)}
        packages = {n: pool.submit(_write_package, scratch / f"m{n}", course, n) for n in numbers}
        imports = [pool.submit(_imports, scratch / f"m{n}-blanked", packages[n], rows[n], str(python)) for n in trees]
        running = []
        for proof, later in zip(sound, newest, strict=True):
            e = proof.exercise
            names = {name for owner, name in others if owner is proof}
            drawn = [mutant for owner, mutant in faults if owner is proof]
            folder, newer = scratch / f"m{e.milestone}-{e.folder}", None if later is None else packages[later]
            judged = packages[e.milestone], newer, rows[e.milestone], names, drawn
            running.append(pool.submit(_prove, proof, folder, *judged, str(python), progress))
        for task in running:
            task.result()
        for proof in sound if recorded else ():
            for name, answer in proof.answers.items():
                if (known := proof.exercise.mistake_of(answer)) != name:
                    why = f"is not refused as mistakes.json says (prove --record writes it), but as {known}: {answer}"
                    proof.problems.append(f"{proof.exercise.id}: wrong/{name}.py {why}")
        problems = [f"m{n}: {problem}" for n, task in zip(trees, imports, strict=True) if (problem := task.result())]
    return proofs, problems


def record(root: Path, proofs: list[Proof]) -> None:
    """Write each exercise's mistakes.json. Two wrong solutions that answer alike are a problem of the proof."""
    for proof in proofs:
        known = list(proof.answers.items())
        for at, (name, answer) in enumerate(known):
            for other in (other for other, given in known[:at] if given.is_like(answer)):
                proof.problems.append(f"{proof.exercise.id}: {name} and {other} give one answer: {answer}")
        path = root / LABS / f"m{proof.exercise.milestone}" / proof.exercise.folder / FILE
        path.write_text(write_answers(proof.answers), encoding="utf-8")


@dataclass
class _Package:
    """A milestone's tree, and its package in a folder. Nobody changes either."""

    tree: Snapshot
    folder: Path


def _write_package(folder: Path, course: Course, number: int) -> _Package:
    """Compiled but for the exercises' files, which are written anew for each judge: a judge writes no bytecode, and
    would compile for half of its time."""
    tree = solved_tree(course, number)
    write_tree({path: file for path, file in tree.items() if path.startswith("folovllm/")}, folder)
    changed = {e.file for e in load_exercises(course.snapshot, number)}
    for path in folder.rglob("*.py"):
        if path.relative_to(folder).as_posix() not in changed:
            py_compile.compile(str(path), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    return _Package(tree, folder)


def blanked_tree(tree: Snapshot, exercises: list[Exercise]) -> dict[str, File]:
    """`tree` with these exercises emptied."""
    blanked = {**tree, **brought(exercises)}
    for exercise in exercises:
        text = blanked[exercise.file].data.decode("utf-8")
        file = blanked[exercise.file]
        blanked[exercise.file] = File(exercise.blanked(text).encode("utf-8"), executable=file.executable)
    return blanked


def _without_path() -> dict[str, str]:
    """The environment of the process that is forked: each judge's own says where its modules come from."""
    shared = {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", "HF_HUB_OFFLINE": "1"}
    return {**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **shared}


def _prove(
    proof: Proof,
    folder: Path,
    package: Future[_Package],
    newest: Future[_Package] | None,
    row: list[Exercise],
    names: set[str],
    drawn: list[Mutant],
    python: str,
    progress: Callable[[str], None],
) -> None:
    """In the new `folder`. names: of the wrong and the right solutions that are judged."""
    e, tree = proof.exercise, package.result().tree
    later = [other for other in row if other.folder > e.folder]
    solved = blanked_tree(tree, later)  # as the learner's tree is when this one has just been solved
    text = solved[e.file].data.decode("utf-8")
    shutil.copytree(package.result().folder, folder)
    write_tree({path: solved[path] for path in {other.file for other in row}}, folder)

    def judge(content: str) -> Grade:
        (folder / e.file).write_text(content, encoding="utf-8", newline="")
        return grade(e, folder, tree, python, patience=PATIENCE)

    progress(f"{e.id}: its solution")
    result = judge(text)
    proof.tests, proof.seconds = len(result.tests), result.seconds
    if result.outcome != "solved":
        proof.problems.append(f"its solution must pass, but {_told(result)}")
    elif result.figure != e.figure.get("ours"):
        proof.problems.append(f"figure.ours must be {result.figure}, which its solution reaches, got {e.figure}")
    every = set(range(1, len(e.pages["en"].invariants) + 1))
    if result.outcome == "solved" and set(result.judged) != every:
        lacking, extra = sorted(every - set(result.judged)), sorted(set(result.judged) - every)
        proof.problems.append(f"each invariant must have a test: {lacking} have none, {extra} are not in the task")
    progress(f"{e.id}: blanked")
    result = judge(e.blanked(text))
    if result.outcome != "blank":
        proof.problems.append(f"blanked it must fail by its own NotImplementedError, but {_told(result)}")
    for name, wrong in ((name, wrong) for name, wrong in e.wrong.items() if name in names):
        progress(f"{e.id}: wrong/{name}.py")
        result = judge(e.with_functions_of(text, wrong, f"wrong/{name}.py"))
        if result.outcome == "solved":
            proof.problems.append(f"wrong/{name}.py must be refused, but it passes")
        elif (answer := answer_of(result.failed_test, result.failure)) is None:
            proof.problems.append(f"wrong/{name}.py must be refused by an answer, but {_told(result)}")
        else:
            proof.answers[name] = answer
    for name, right in ((name, right) for name, right in e.right.items() if name in names):
        progress(f"{e.id}: right/{name}.py")
        result = judge(e.with_functions_of(text, right, f"right/{name}.py"))
        if result.outcome != "solved":
            proof.problems.append(f"right/{name}.py must be accepted, but {_told(result)}")
        elif name == BEST and result.figure != e.figure.get(BEST):
            proof.problems.append(f"figure.best must be {result.figure}, which right/{BEST}.py reaches, got {e.figure}")
    if newest is not None:
        progress(f"{e.id}: later on")
        result = grade(e, newest.result().folder, newest.result().tree, python, patience=PATIENCE)
        if result.outcome != "solved":
            proof.problems.append(f"its solution must pass in later milestones too, but {_told(result)}")
    for number, mutant in enumerate(drawn, 1):
        progress(f"{e.id}: mutant {number} of {len(drawn)}")
        result = judge(e.with_functions_of(text, mutant.functions, mutant.name))
        proof.mutants += result.outcome != "solved"
        if result.outcome == "solved":
            proof.problems.append(f"a mutant passes, though it is not in equivalent.toml: {mutant.name}")
    for at, problem in enumerate(proof.problems):
        proof.problems[at] = f"{e.id}: {problem}"


def _newest_with(course: Course, exercise: Exercise, tree: Snapshot) -> int | None:
    """The newest later milestone in which the exercise's functions are what they are in its own."""
    for milestone in reversed(course.milestones[exercise.milestone + 1 :]):
        later = course.tree(milestone.number)
        if exercise.file in later and is_same(exercise, tree[exercise.file], later[exercise.file]):
            return milestone.number
    return None


def _mutants_of(proof: Proof, tree: Snapshot) -> list[Mutant]:
    """Those that can be refused. An entry of equivalent.toml that is no mutant any more is a problem of the proof. An
    open task has none: all that reaches its bound is right."""
    every = [] if proof.exercise.figure else mutants(proof.exercise, tree[proof.exercise.file].data.decode("utf-8"))
    known = equivalents(proof.exercise)
    for name in known.keys() - {mutant.name for mutant in every}:
        proof.problems.append(f"{proof.exercise.id}: equivalent.toml has {name!r}, which is no mutant of the solution")
    return [mutant for mutant in every if mutant.name not in known]


def _told(result: Grade) -> str:
    if result.outcome == "solved":
        return "it passes"
    failure = result.failure
    got = f"expected {failure['expected']}, got {failure['got']}" if "expected" in failure else failure.get("text", "")
    mistake = f"message {result.mistake!r}" if result.mistake else "no message"
    frames = "".join(f"; {frame['file']}:{frame['line']}" for frame in failure.get("frames", [])[-1:])
    return f"{result.outcome}: {result.failed_test}: {got or result.problem} ({mistake}{frames})"


def _imports(folder: Path, package: Future[_Package], row: list[Exercise], python: str) -> str:
    """What importing every module of the wholly blanked tree failed with; "" if it did not."""
    shutil.copytree(package.result().folder, folder)
    blanked = blanked_tree(package.result().tree, row)
    write_tree({path: blanked[path] for path in {e.file for e in row}}, folder)
    code = (
        "import importlib, pkgutil, folovllm\n"
        "names = [m.name for m in pkgutil.walk_packages(folovllm.__path__, 'folovllm.')]\n"
        "[importlib.import_module(n) for n in names if not n.endswith('.__main__')]\n"
    )
    env = {**os.environ, "PYTHONPATH": str(INSIDE), "LAB_TREE": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [python, "-c", code], cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    return f"blanked, it cannot be imported: {done.stderr.strip()[-500:]}" if done.returncode else ""


def choose(course: Course, names: list[str]) -> list[Exercise]:
    """Exercises by name: m3 for all of a milestone, m3/01 or m3/block-pool for one; none named: all there are."""
    rows = {m.id: load_exercises(course.snapshot, m.number) for m in course.milestones}
    if not names:
        return [e for row in rows.values() for e in row]
    chosen = []
    for name in names:
        course.get(name.partition("/")[0])
        row = rows[name.partition("/")[0].lower()]
        found = [e for e in row if "/" not in name or e.is_called(name)]
        if not found:
            known = ", ".join(e.folder for e in row) or "none"
            raise MilestoneError(f"no exercise is called {name!r}; there are {known}")
        chosen += found
    return chosen
