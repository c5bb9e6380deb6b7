"""Grading: what a learner's code can do wrong, and where `folovllm` comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from milestones.labs.answers import Answer
from milestones.labs.grade import Grade, grade
from tests.milestones.labs_support import BASE, JUDGE, LAB, exercise, write_package

SPAWNING = """\
import multiprocessing
import subprocess
import sys

import folovllm
from lab_judge import expect, invariant


def where():
    import folovllm

    return folovllm.__file__


@invariant(1)
def test_processes_see_the_same_package():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        expect(pool.apply(where), folovllm.__file__)
    command = [sys.executable, "-c", "import folovllm; print(folovllm.__file__)"]
    shown = subprocess.run(command, capture_output=True, text=True)
    expect(shown.stdout.strip(), folovllm.__file__)


@invariant(2)
def test_it_is_the_learners():
    expect(folovllm.VERSION, 0)
"""


def graded(tmp_path: Path, body: str, **changes: str | None) -> Grade:
    """What comes of `body` in place of `return x + x`."""
    folder = write_package(tmp_path / "我的 lab", BASE.replace("return x + x", body))
    return grade(exercise(**changes), folder, {})


def test_the_solution_is_green(tmp_path: Path) -> None:
    result = graded(tmp_path, "return x + x")
    assert (result.outcome, result.passed, result.tests) == ("solved", [1, 2], ["test_three", "test_negative"])


def test_a_wrong_value_is_shown_with_what_was_asked(tmp_path: Path) -> None:
    result = graded(tmp_path, "return x * x")
    told = result.failure
    assert (result.outcome, result.invariant, result.mistake) == ("wrong", 1, "squares")
    assert (told["got"], told["expected"], told["values"]) == ("9", "6", {"x": "3"})
    assert told["asked"] == ["x = 3", "expect(Base().double(x), 6)"]


def test_only_a_mistakes_own_answer_is_explained(tmp_path: Path) -> None:
    bodies = {
        "return x + 2": "adds-two",
        "return 7": None,
        "raise KeyError(x)": None,
        "return 9 if x > 0 else 0": "squares",
    }
    found = [graded(tmp_path / str(at), body).mistake for at, body in enumerate(bodies)]
    assert found == list(bodies.values())


def test_an_answer_is_the_same_where_a_cpu_rounds_otherwise() -> None:
    answer = Answer("test_it", "[0.25, 3]", "[0.250312, 4] at [0, 7]")
    assert answer.is_like(answer._replace(got="[0.250313, 4] at [0, 7]"))
    for got in ("[0.251312, 4] at [0, 7]", "[0.250312, 5] at [0, 7]", "[0.250312, 4]", "nan"):
        assert not answer.is_like(answer._replace(got=got))


def test_a_blank_is_no_mistake(tmp_path: Path) -> None:
    e = exercise()
    folder = write_package(tmp_path, e.blanked(BASE))
    assert grade(e, folder, {}).outcome == "blank"


def test_another_blank_is_needed_first(tmp_path: Path) -> None:
    result = graded(tmp_path, 'raise NotImplementedError("exercise m0/03-other: f is not written yet")')
    assert (result.outcome, result.problem) == ("needs", "m0/03-other")


def test_an_exception_is_shown_at_the_learners_line(tmp_path: Path) -> None:
    result = graded(tmp_path, "print('here', x)\n        return [1][x]")
    frame = result.failure["frames"][-1]
    assert (result.outcome, result.failure["kind"]) == ("error", "IndexError")
    assert (frame["file"], frame["line"], frame["code"]) == ("folovllm/base.py", 5, "return [1][x]")
    assert result.failure["printed"] == "here 3\n"


def test_a_syntax_error_is_shown_at_its_line(tmp_path: Path) -> None:
    result = graded(tmp_path, "return (x")
    assert (result.outcome, result.failure["kind"], result.failure["frames"][0]["line"]) == ("error", "SyntaxError", 4)


def test_an_endless_loop_is_stopped_and_found(tmp_path: Path) -> None:
    at_once = {"exercise.toml": LAB["exercise.toml"].replace("seconds = 60", "seconds = 1")}
    result = graded(tmp_path, "while True:\n            pass", **at_once)
    assert (result.outcome, result.invariant, result.mistake) == ("time", 1, None)
    assert result.failure["frames"][-1]["name"] == "double"
    assert "expect(Base().double(x), 6" in "\n".join(result.failure["asked"])


CRASHES = ["import os; os._exit(0)", "import ctypes; ctypes.string_at(0)", "import os; os.abort()"]
LEAVING = ["import sys; sys.exit(0)", "import pytest; pytest.exit('x')", "raise KeyboardInterrupt"]


@pytest.mark.parametrize("body", CRASHES)
def test_a_crash_is_no_success(body: str, tmp_path: Path) -> None:
    assert graded(tmp_path, body).outcome == "crash"


def test_a_process_that_ends_by_itself_says_so_in_the_learners_language(tmp_path: Path) -> None:
    folder = write_package(tmp_path, BASE.replace("return x + x", "import os; os._exit(3)"))
    assert grade(exercise(), folder, {}, language="zh").failure["text"] == "它自己退出了，退出码是 3"


@pytest.mark.parametrize("body", LEAVING)
def test_leaving_is_no_success(body: str, tmp_path: Path) -> None:
    assert graded(tmp_path, body).outcome in ("error", "crash", "broken")


@pytest.mark.parametrize(
    "judge",
    ["import pytest\n" + JUDGE.replace("    x = 3", "    pytest.skip('no')"), "def helper(): ...\n"],
)
def test_a_skipped_test_and_none_at_all_are_no_success(judge: str, tmp_path: Path) -> None:
    assert graded(tmp_path, "return x + x", **{"judge.py": judge}).outcome == "broken"


def test_the_package_is_the_learners_in_worker_processes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "installed/folovllm"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("VERSION = 'another'\n")
    monkeypatch.setenv("PYTHONPATH", str(installed.parent))
    result = graded(tmp_path, "return x + x", **{"judge.py": SPAWNING})
    assert (result.outcome, result.failure) == ("solved", {})


def test_a_folder_without_the_package_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = grade(exercise(), tmp_path / "empty", {})
    assert (result.outcome, result.failure["kind"]) == ("error", "ModuleNotFoundError")


def test_code_that_prints_without_end_is_told_so(tmp_path: Path) -> None:
    at_once = {"exercise.toml": LAB["exercise.toml"].replace("seconds = 60", "seconds = 5")}
    result = graded(tmp_path, "while True:\n            print(x)", **at_once)
    assert (result.outcome, result.was_printing) == ("time", True)


def test_a_long_value_is_cut_to_where_it_differs(tmp_path: Path) -> None:
    long = JUDGE.replace("expect(Base().double(x), 6", "expect([*range(1000), Base().double(x)], [*range(1000), 6]")
    told = graded(tmp_path, "return 7", **{"judge.py": long}).failure
    assert told["got"].endswith("998, 999, 7]")
    assert told["expected"].endswith("998, 999, 6]")
    assert told["got"].startswith("… ")


def test_the_call_that_was_to_raise_is_shown(tmp_path: Path) -> None:
    body = "    with raises(ValueError):\n        Base().double(x)\n"
    judge = JUDGE.replace("    expect(Base().double(x), 6)\n", body)
    told = graded(tmp_path, "return x + x", **{"judge.py": judge.replace("invariant\n", "invariant, raises\n")}).failure
    assert told["asked"] == ["x = 3", "with raises(ValueError):", "    Base().double(x)"]
    assert (told["expected"], told["got"]) == ("ValueError", "no error")


def test_in_chinese_an_expectation_is_chinese(tmp_path: Path) -> None:
    judge = JUDGE.replace(
        "    expect(Base().double(x), 6",
        "    with raises(ValueError, says='x'):\n        Base().double(x)\n    expect(1, 1",
    )
    folder = write_package(tmp_path, BASE)
    told = grade(
        exercise(**{"judge.py": judge.replace("invariant\n", "invariant, raises\n")}), folder, {}, language="zh"
    ).failure
    assert (told["expected"], told["got"]) == ("ValueError，文本含 'x'", "没有报错")
