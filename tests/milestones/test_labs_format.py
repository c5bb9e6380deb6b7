"""An exercise that is misspelt is refused by name, and one that proves nothing is told so."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from milestones.labs.exercise import exercise_problems, load_exercises
from milestones.labs.prove import choose, prove
from milestones.spec import MilestoneError
from tests.milestones.labs_support import EN, FOLDER, JUDGE, LAB, OPEN, ZH, exercise, lab_course

ROOT = Path(__file__).resolve().parents[2]
TOML = LAB["exercise.toml"]


def test_an_exercise_is_read_whole() -> None:
    e = exercise()
    assert (e.id, e.name, e.functions, e.seconds) == ("m0/01-twice", "twice", ["Base.double"], 60)
    assert (e.pages["en"].title, e.pages["zh"].title) == ("Twice", "两倍")
    assert e.pages["en"].invariants == ["`double(x)` is twice `x`.", "A negative number is one too."]
    assert e.pages["en"].rest == "Nothing else."
    assert e.pages["en"].hints[2] == "```python\nreturn x + x\n```"
    (question,) = e.pages["zh"].questions
    assert (question.text, question.options["b"], question.answer, question.reason) == (
        "3 的两倍是多少？",
        "6",
        "b",
        "3 + 3。",
    )
    assert list(e.wrong) == ["adds-two", "squares"]


@pytest.mark.parametrize("name", ["1", "01", "twice", "01-twice", "m0/1", "m0/01", "M0/twice", "m0/01-twice"])
def test_a_person_may_call_it_so(name: str) -> None:
    assert exercise().is_called(name)


@pytest.mark.parametrize("name", ["2", "m1/1", "double", ""])
def test_another_name_is_another_exercise(name: str) -> None:
    assert not exercise().is_called(name)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"judge.py": None}, f"{FOLDER}/judge.py is missing"),
        ({"notes.txt": "x"}, f"{FOLDER}/notes.txt: unknown file; known are exercise.toml, equivalent.toml"),
        (
            {"exercise.toml": TOML + "wrong = 1\n"},
            "unknown key 'wrong'; known are file, functions, note, minutes, seconds",
        ),
        ({"exercise.toml": TOML.replace("seconds = 60", "seconds = 99")}, "seconds must be 1 to 60, got 99"),
        ({"exercise.toml": TOML.replace("minutes = 5", "minutes = 121")}, "minutes must be 5 to 120, got 121"),
        ({"exercise.toml": TOML.replace("minutes = 5\n", "")}, "minutes is missing"),
        ({"exercise.toml": TOML.replace('["Base.double"]', "[]")}, "functions must be a list that is not empty"),
        ({"exercise.toml": TOML.replace("note", "page")}, "unknown key 'page'"),
        ({"wrong/squares.py": None}, "must have two wrong solutions or more, got 1"),
        ({"wrong/third.py": LAB["wrong/squares.py"]}, "wrong/ and the Mistakes of en.md must have the same names"),
        ({"en.md": EN.replace("# Twice", "Twice", 1)}, "must begin with `# ` and a title, got 'Twice'"),
        ({"en.md": EN.replace("## Hints", "## Hint")}, "must have the sections ## Task, ## Hints"),
        ({"en.md": EN.replace("2. Add.\n", "")}, "expected item 2, got '3. ```python'"),
        ({"en.md": EN.replace("b. 6", "c. 6")}, "must have options `a. …`, `b. …`"),
        ({"en.md": EN.replace("Answer: b.", "Answer: c.")}, "must end with `Answer: b.`"),
        ({"en.md": EN.replace("Answer: b.", "Answer: a.")}, "must have the same answers, got ['a'] and ['b']"),
        ({"zh.md": ZH.replace("2. 负数也一样。\n", "")}, "must have as many invariants, got 2 and 1"),
        ({"en.md": EN.replace("That is the square.", "")}, "Mistakes: 'squares' has no message"),
    ],
)
def test_a_misspelt_exercise_is_refused_by_name(changes: dict[str, str | None], text: str) -> None:
    with pytest.raises(MilestoneError) as error:
        load_exercises(lab_course(**changes).snapshot, 0)
    assert text in str(error.value)
    assert str(error.value).startswith(FOLDER)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"exercise.toml": TOML.replace("Base.double", "Base.triple")}, "must define Base.triple once, found 0"),
        ({"exercise.toml": TOML.replace("base.py", "engine.py")}, "folovllm/engine.py is not in m0"),
        ({"exercise.toml": TOML.replace("m0/index.md", "m0/x.md")}, "note docs/en/m0/x.md is not in m0"),
        ({"wrong/squares.py": "def f(): ..."}, "defines f, which is not one of the exercise's functions"),
        ({"right/twice.py": "def f(): ..."}, "right/twice.py: defines f, which is not one of the exercise's functions"),
        (
            {"wrong/squares.py": "class Base:\n    def double(self): ..."},
            "Base.double must have the parameters self, x; got self",
        ),
    ],
)
def test_an_exercise_has_to_fit_its_milestone(changes: dict[str, str | None], text: str) -> None:
    course = lab_course(**changes)
    assert any(text in problem for problem in exercise_problems(load_exercises(course.snapshot, 0), course.tree(0)))


def problems(**changes: str | None) -> list[str]:
    course = lab_course(**changes)
    (proof,), others = prove(course, choose(course, []), modules=("pytest",))
    return [*proof.problems, *others]


def test_a_good_exercise_is_proved() -> None:
    assert problems() == []
    other = LAB["wrong/squares.py"].replace("x * x", "2 * x")
    assert problems(**{"right/twice.py": other}) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, ""),
        ({"right/best.py": OPEN["right/best.py"].replace("30", "31")}, "figure.best must be 31.0, which right/best.py"),
        ({"own.py": OPEN["own.py"].replace("12", "13")}, "figure.ours must be 13.0, which its solution reaches"),
        (
            {"own.py": OPEN["own.py"].replace("12", "11")},
            "its solution must pass, but wrong: test_large: expected at least",
        ),
    ],
)
def test_an_open_task_says_what_ours_and_the_best_reach(changes: dict[str, str], text: str) -> None:
    found = problems(**{**OPEN, **changes})
    assert [text in problem for problem in found] == ([True] if text else []), found


def test_a_figure_and_a_file_of_its_own_go_together() -> None:
    assert exercise_problems([exercise(**OPEN)], lab_course(**OPEN).tree(0)) == []
    for lacking in ({"own.py": None}, {"exercise.toml": TOML}):
        with pytest.raises(MilestoneError, match=r"an open task has own\.py, and figure"):
            exercise(**{**OPEN, **lacking})


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"judge.py": JUDGE.replace("-2)", "-3)")}, "its solution must pass, but wrong: test_negative: expected -3"),
        ({"judge.py": JUDGE.replace("@invariant(2)\n", "@invariant(1)\n")}, "[2] have none, [] are not in"),
        ({"judge.py": JUDGE.replace("@invariant(2)\n", "")}, "test_negative has no @invariant(number)"),
        ({"judge.py": JUDGE.replace("x), 6", "x) > 0, True")}, "wrong/adds-two.py is not refused as"),
        (
            {"judge.py": JUDGE.replace("Base().double(x)", "6").replace("Base().double(-1)", "-2")},
            "blanked it must fail by its own NotImplementedError, but it passes",
        ),
        ({"judge.py": "import pytest\npytest.skip('later', allow_module_level=True)\n"}, "was skipped"),
        ({"judge.py": "x = 1\n"}, "no test ran"),
        (
            {"right/not-so.py": "class Base:\n    def double(self, x: int) -> int:\n        return 7 - x\n"},
            "right/not-so.py must be accepted, but wrong: test_three: expected 6, got 4",
        ),
    ],
)
def test_an_exercise_that_proves_nothing_is_told_so(changes: dict[str, str | None], text: str) -> None:
    assert any(text in problem for problem in problems(**changes)), problems(**changes)


def test_a_judge_writes_nothing_private() -> None:
    """A solution may keep its own books in another way, and a judge that writes into them would break."""
    changing = {"add", "append", "clear", "extend", "insert", "pop", "remove", "update"}
    found = []
    for path in sorted((ROOT / "milestones/labs").glob("m*/**/*.py")):
        if path.parent.name in ("right", "wrong"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            written = [*getattr(node, "targets", ()), *([node.target] if isinstance(node, ast.AugAssign) else [])]
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in changing:
                written.append(node.func.value)
            names = (ast.unparse(target) for target in written if not isinstance(target, ast.Name))
            found += [f"{path}: {name}" for name in names if re.search(r"(?<!\bself)\._[a-z]", name)]
    assert found == []
