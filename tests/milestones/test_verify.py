"""`verify` must fail for each way in which a milestone can be broken, and say why."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from milestones.chain import Course
from milestones.green import FILE, GreenRuns
from milestones.sources import working_tree
from milestones.tree_runner import Result, TreeRunner
from milestones.verify import choose, draw_tests, equals_root, static_problems, verify
from tests.milestones.conftest import make_course

ROOT = Path(__file__).resolve().parents[2]
Problems = Callable[[str], list[str]]


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny course needs none, and its processes start in half the time."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def problems(tmp_path: Path) -> Problems:
    """Run m0's tests with this text as its only test file; the problems that are reported."""

    def run(test_file: str) -> list[str]:
        course = make_course(**{"tests/m0/test_base.py": test_file})
        result = Result(course.get("m0"))
        TreeRunner(ROOT, tmp_path, course.tree(0)).run_tests(result, ["tests/m0"])
        return result.problems

    return run


def test_a_sound_milestone_passes_with_all_tests_so_far() -> None:
    course = make_course()
    (result,) = verify(ROOT, course, [course.get("m1")], run_all=True)
    assert result.problems == []
    assert (result.modules, result.tests) == (2, 2)


def test_slow_tests_run_in_the_tree_of_their_own_milestone_and_not_in_later_ones() -> None:
    slow = "import pytest\n\n\n@pytest.mark.slow\ndef test_slow():\n    assert False\n"
    course = make_course(**{"tests/m0/test_slow.py": slow})
    (result,) = verify(ROOT, course, [course.get("m1")], run_all=True)
    assert (result.problems, result.tests) == ([], 2)
    (result,) = verify(ROOT, course, [course.get("m0")])
    assert "test_slow" in result.problems[0]


def test_a_sample_has_all_of_the_milestones_own_tests_and_some_of_the_earlier_ones() -> None:
    tests = {f"tests/m0/test_{name}.py": "def test_yes():\n    pass\n" for name in "abc"}
    course = make_course(**tests)
    tree = course.tree(1)
    earlier = [path for path in tree if path.startswith("tests/m0/test_")]
    draws = {tuple(draw_tests(["tests/m0", "tests/m1"], tree, 2, random.Random(seed))) for seed in range(20)}
    assert len(draws) > 1
    for *files, own in draws:
        assert own == "tests/m1"
        assert len(set(files)) == -(-len(earlier) // 2)
        assert set(files) <= set(earlier)


def test_a_share_tests_some_trees_and_imports_the_others() -> None:
    course = make_course(**{"tests/m0/test_no.py": "def test_no():\n    assert False\n"})
    results = verify(ROOT, course, course.milestones, run_all=True, share=2)
    assert sorted(bool(result.problems) for result in results) == [False, True]
    assert all(result.modules for result in results)


def test_a_tree_that_was_green_is_not_run_again_until_something_in_it_changes(tmp_path: Path) -> None:
    """A test that passes once and fails afterwards shows whether it ran."""
    flag = tmp_path / "ran"
    once = f"from pathlib import Path\n\n\ndef test_once():\n    Path({str(flag)!r}).touch(exist_ok=False)\n"

    def run(**files: str) -> Result:
        course = make_course(**{"tests/m0/test_once.py": once, **files})
        (result,) = verify(ROOT, course, [course.get("m0")], green=GreenRuns(tmp_path))
        return result

    assert run().problems == []
    assert flag.exists()
    again = run()
    assert (again.problems, again.note) == ([], "unchanged since its last green run")
    assert "test_once" in run(**{"tests/m0/test_more.py": "def test_yes():\n    pass\n"}).problems[0]
    assert (tmp_path / FILE).is_file()


def test_the_milestone_that_is_the_root_is_collected_and_not_run() -> None:
    """A test that would fail shows that it did not run."""
    course = make_course(**{"tests/m1/test_engine.py": "def test_no():\n    assert False\n"})
    assert equals_root(course, course.tree(1))
    assert not equals_root(course, course.tree(0))
    (result,) = verify(ROOT, course, [course.get("m1")])
    assert (result.problems, result.tests) == ([], 2)


def test_a_module_that_does_not_import_fails_the_milestone(tmp_path: Path) -> None:
    course = make_course(**{"folovllm/base.py": "from folovllm.engine import Nothing\n"})
    result = Result(course.get("m0"))
    TreeRunner(ROOT, tmp_path, course.tree(0)).import_modules(result)
    (problem,) = result.problems
    assert problem.startswith("importing the package failed: ")
    assert "No module named 'folovllm.engine'" in problem


def test_a_failing_test_fails_the_milestone(problems: Problems) -> None:
    (problem,) = problems("def test_no():\n    assert False\n")
    assert "1 failed" in problem


def test_a_failure_tells_the_seed_of_its_random_order(problems: Problems, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pytest_randomly")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_randomly")
    (problem,) = problems("def test_no():\n    assert False\n")
    assert re.match(r"its tests failed \(Using --randomly-seed=\d+\): ", problem)


def test_a_skipped_test_fails_the_milestone_unless_it_needs_a_gpu(problems: Problems) -> None:
    gpu = "@pytest.mark.gpu\ndef test_gpu():\n    pytest.skip('no GPU')\n"
    skip = "def test_skip():\n    pytest.skip('not today')\n"
    assert problems(f"import pytest\n{gpu}{skip}") == ["tests/m0/test_base.py::test_skip was skipped"]


def test_a_skipped_file_fails_the_milestone(problems: Problems) -> None:
    found = problems("import pytest\npytest.skip('not today', allow_module_level=True)\n")
    assert "tests/m0/test_base.py was skipped" in found


def test_a_milestone_without_tests_fails(problems: Problems) -> None:
    assert "no test was collected" in problems("x = 1\n")


def test_modules_from_elsewhere_fail_the_milestone(problems: Problems) -> None:
    """A test that drops the tree from the path gets this repository's package, and is caught."""
    found = problems(
        "import sys\nsys.modules.pop('folovllm', None)\n"
        f"sys.path.insert(0, {str(ROOT)!r})\nimport folovllm, milestones\ndef test_x(): pass\n"
    )
    starts = [f"loaded from outside the tree: {name} from " for name in ("folovllm", "milestones")]
    assert [any(p.startswith(start) for p in found) for start in starts] == [True, True]


def test_a_later_name_is_found_with_its_line() -> None:
    course = make_course(**{"folovllm/base.py": "x = 1\n# as in Engine.run\nEngines = 2\n"})
    assert static_problems(course, course.get("m0"))[0] == ("folovllm/base.py:2: Engine belongs to a later milestone")


def test_each_milestone_is_chosen_once() -> None:
    course = make_course()
    assert [m.id for m in choose(course, [])] == ["m0", "m1"]
    with pytest.raises(Exception, match="each milestone once"):
        choose(course, ["m0", "M0"])


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository, not an archive of it")
def test_this_repository_is_in_order() -> None:
    """Every file belongs to a milestone, every stored version is needed, every exercise is there."""
    course = Course.load(working_tree(ROOT))
    assert course.problems() == []
    assert [p for m in course.milestones for p in static_problems(course, m)] == []
