"""Each of the slips is refused, and what a learner is told about it is true."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from milestones.chain import Course
from milestones.fork_server import serving
from milestones.labs.exercise import load_exercises
from milestones.labs.grade import grade
from milestones.labs.prove import MODULES, blanked_tree, choose
from milestones.sources import working_tree
from milestones.trees import write_tree
from tests.milestones.slips import SLIPS

pytestmark = [pytest.mark.exhaustive, pytest.mark.slow]


@pytest.fixture(scope="module")
def course() -> Course:
    return Course.load(working_tree(Path(__file__).resolve().parents[2]))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("bin") / "bin", MODULES, {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}) as path:
        yield str(path)


@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_is_refused_and_no_false_message_shown(name: str, course: Course, python: str, tmp_path: Path) -> None:
    (exercise,) = choose(course, [name])
    tree = course.tree(exercise.milestone)
    later = [e for e in load_exercises(course.snapshot, exercise.milestone) if e.folder > exercise.folder]
    solved = blanked_tree(tree, later)
    write_tree({path: file for path, file in solved.items() if path.startswith("folovllm/")}, tmp_path)
    text = solved[exercise.file].data.decode("utf-8")
    for old, new, true in SLIPS[name]:
        assert old in text, (old, exercise.file)
        (tmp_path / exercise.file).write_text(text.replace(old, new), encoding="utf-8")
        found = grade(exercise, tmp_path, tree, python, patience=4)
        assert found.outcome in ("wrong", "error", "time"), (old, new, found)
        assert found.mistake in {None, *true}, (old, new, found.mistake, found.failure.get("got"))
