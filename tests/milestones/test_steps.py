"""Steps: the row of commits inside a milestone, on a course whose m1 arrives in two of them.

m0 ──▶ M1.1 folovllm/wheel.py and its test ──▶ M1.2 folovllm/engine.py on wheels, and all the rest = m1
"""

from __future__ import annotations

from pathlib import Path

import pytest

from milestones import cli
from milestones.chain import Course
from milestones.sources import IDENTITY, commit, git
from milestones.spec import MilestoneError
from milestones.steps import owners_of, stages, step_problems
from milestones.tags import tag_all
from milestones.verify import prove, verify
from tests.milestones.conftest import M1, make_course

STEPS = """
[[steps]]
title = "A wheel turns"
body = "Round things roll."
read = ["folovllm/wheel.py"]
show = "python -m pytest tests/m1/test_wheel.py"
files = ["folovllm/wheel.py"]
tests = ["tests/m1/test_wheel.py"]

[[steps]]
title = "An engine on wheels"
body = "It drives."
read = ["folovllm/engine.py", "folovllm/wheel.py"]
show = "python -m pytest tests/m1"
files = []
tests = ["tests/m1/test_engine.py"]
"""
SPEC = "milestones/m1/milestone.toml"
ALONE = "def test_yes():\n    assert True\n"
FILES = {
    "folovllm/wheel.py": "def turn():\n    return 1\n",
    "folovllm/engine.py": "from folovllm import base, wheel\n\n\nclass Engine(base.Base):\n    turn = wheel.turn\n",
    "tests/m1/test_wheel.py": "from folovllm.wheel import turn\n\n\ndef test_turn():\n    assert turn() == 1\n",
    SPEC: M1.replace('"folovllm/engine.py"', '"folovllm/engine.py", "folovllm/wheel.py"') + STEPS,
}


def course(steps: str = STEPS, **changes: str) -> Course:
    return make_course(**{**FILES, SPEC: FILES[SPEC].replace(STEPS, steps), **changes})


def problems(steps: str = STEPS, **changes: str) -> list[str]:
    made = course(steps, **changes)
    return [problem.removeprefix(f"{SPEC}: ") for problem in step_problems(made, made.get("m1"))]


@pytest.fixture
def root(repository: Path) -> Path:
    """The course in a repository of its own, committed."""
    for path, text in FILES.items():
        (repository / path).write_text(text, encoding="utf-8")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--no-gpg-sign", "--message", "steps", env=IDENTITY)
    return repository


def out(root: Path, *args: str) -> str:
    return git(root, *args).decode().strip()


def test_a_step_has_the_milestone_before_and_what_came_up_to_it():
    first, last = stages(course(), course().get("m1"))
    assert first.paths == ["folovllm/wheel.py", "tests/m1/test_wheel.py"]
    assert "folovllm/engine.py" not in first.tree
    assert first.tree["folovllm/__init__.py"].data == b"VERSION = 0\n"  # m0's: it changes in the step after
    assert b"M0: Ground" in first.tree["README.md"].data
    assert last.tree["folovllm/__init__.py"].data == b"VERSION = 1\n"
    assert b"M1: Engine" in last.tree["README.md"].data
    assert (first.tests, last.tests) == (["tests/m1/test_wheel.py"], ["tests/m1/test_engine.py"])


def test_what_no_step_names_falls_to_the_last_or_to_the_one_that_takes_the_rest():
    assert owners_of(course(), course().get("m1"))["folovllm/__init__.py"] == [1]
    first_takes = course(STEPS.replace('files = ["folovllm/wheel.py"]', "files = []\nrest = true"))
    owners = owners_of(first_takes, first_takes.get("m1"))
    assert owners["folovllm/__init__.py"] == owners["folovllm/engine.py"] == [0]
    assert owners["tests/m1/test_engine.py"] == [1]


def test_an_exact_path_beats_a_pattern():
    wide = course(STEPS.replace("files = []", 'files = ["folovllm/*.py"]'))
    owners = owners_of(wide, wide.get("m1"))
    assert (owners["folovllm/wheel.py"], owners["folovllm/engine.py"]) == ([0], [1])


def test_notes_and_figures_have_a_step_behind_the_others():
    pages = {f"docs/{path}": "# An engine\n" for path in ("en/m1/a.md", "zh/m1/index.md", "en/m1/index.md")}
    spec = FILES[SPEC].replace("notes = []", 'notes = ["docs/*/m1/**"]')
    made = course(**{SPEC: spec, **pages})
    first, second, last = stages(made, made.get("m1"))
    assert (last.paths, last.lines, last.is_last) == (sorted(pages), 0, True)
    assert last.message.startswith("M1.3 Explain it in notes\n")
    assert "Read first: docs/en/m1/index.md\nSee it: python -m pytest\n\nM1: Engine. It runs." in last.message
    assert second.tree.keys() == last.tree.keys() - pages.keys()
    assert (first.has_all_code, second.has_all_code, second.is_last) == (False, True, False)
    assert step_problems(made, made.get("m1")) == []


def test_a_step_counts_the_lines_that_the_tree_before_does_not_have():
    first, last = stages(course(), course().get("m1"))
    assert first.lines == 7  # wheel.py 2, its test 5
    assert last.lines == 11  # engine.py 5, its test 5, and the changed line of __init__.py


def test_a_step_too_long_to_be_read_at_a_sitting_is_a_problem():
    def wheel(lines: int) -> dict[str, str]:
        return {"folovllm/wheel.py": "def turn():\n    return 1\n" + "# round\n" * (lines - 2)}

    assert problems(**wheel(1_495)) == []  # and 5 of its test
    assert problems(**wheel(1_496)) == ["step 1: must bring at most 1,500 lines of code and tests, got 1,501"]


def test_a_file_of_two_steps_is_a_problem():
    twice = STEPS.replace("files = []", 'files = ["folovllm/wheel.py"]')
    assert problems(twice) == ["folovllm/wheel.py is claimed by steps 1 and 2; one has to let go"]


def test_a_pattern_of_nothing_is_a_problem():
    assert problems(STEPS.replace("files = []", 'files = ["folovllm/base.py"]')) == [
        "step 2: 'folovllm/base.py' matches no file that arrives or changes here"
    ]


def test_a_step_of_nothing_is_a_problem():
    third = STEPS + STEPS[STEPS.rindex("[[steps]]") :].replace("tests/m1/test_engine.py", "")
    third = third.replace('tests = [""]', "tests = []")
    empty = third.replace('title = "A wheel', 'rest = true\ntitle = "A wheel')
    assert "step 3: brings no file" in problems(empty)


def test_what_a_step_shows_must_be_there():
    early = STEPS.replace("pytest tests/m1/test_wheel.py", "pytest tests/m1/test_engine.py::test_engine")
    assert problems(early) == ["step 1: tests/m1/test_engine.py is not there yet"]
    unread = STEPS.replace('read = ["folovllm/wheel.py"]', 'read = ["folovllm/engine.py"]')
    assert problems(unread) == ["step 1: folovllm/engine.py is not there yet"]


def test_an_import_of_a_later_step_is_a_problem():
    swapped = STEPS.replace("folovllm/wheel.py", "folovllm/engine.py", 2).replace("[]", '["folovllm/wheel.py"]')
    assert problems(swapped) == [
        "step 1: folovllm/engine.py imports wheel from folovllm, which does not have it yet",
        "step 1: tests/m1/test_wheel.py imports folovllm.wheel, which is not there yet",
    ]


def test_what_does_not_resolve_is_named_once_at_the_step_that_brings_it():
    lost = "from folovllm.nowhere import it\n"
    assert problems(**{"folovllm/wheel.py": lost, "tests/m1/test_wheel.py": ALONE}) == [
        "step 1: folovllm/wheel.py imports folovllm.nowhere, which is not there yet"
    ]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('title = "A wheel turns"\n', "", "step 1: title is missing"),
        ('title = "A wheel turns"\n', 'title = ""\n', "step 1: title must be a non-empty string"),
        ('title = "A wheel turns"\n', 'title = "A\\nB"\n', "step 1: title must be one line"),
        ("files = []", "file = []", "step 2: unknown key 'file'"),
        ("files = []", "files = []\nrest = 1", "step 2: rest must be true or false"),
        ('read = ["folovllm/wheel.py"]', "read = []", "step 1: read must name the file to read first"),
        ('tests = ["tests/m1/test_engine.py"]', 'tests = ["m1/x.py"]', "step 2: tests must begin with tests/"),
        ("files = []", 'files = ["docs/en/m1/a.md"]', "step 2: files must not begin with docs/"),
        ("tests = [", "rest = true\ntests = [", "only one step may have rest = true"),
    ],
)
def test_a_step_that_is_misspelt_is_refused(old: str, new: str, complaint: str):
    with pytest.raises(MilestoneError, match=complaint):
        course(STEPS.replace(old, new))


def test_each_step_is_a_commit_and_the_tag_is_the_last(root: Path):
    made = Course.load(commit(root))
    tags = tag_all(root, made)
    titles = ["M0: Ground", "M1.1 A wheel turns", "M1.2 An engine on wheels"]
    assert out(root, "log", "--reverse", "--format=%s", "m1").splitlines() == titles
    assert out(root, "log", "--reverse", "--format=%s", "m0..m1").splitlines() == titles[1:]
    assert tags[1].commit == out(root, "rev-parse", "m1^{commit}")
    assert out(root, "diff", "--name-only", "m0", "m1~1").splitlines() == [
        "folovllm/wheel.py",
        "tests/m1/test_wheel.py",
    ]
    assert out(root, "log", "-1", "--format=%b", "m1~1").splitlines() == [
        "Round things roll.",
        "",
        "Read first: folovllm/wheel.py",
        "See it: python -m pytest tests/m1/test_wheel.py",
    ]
    assert "It runs." in out(root, "log", "-1", "--format=%b", "m1")  # the milestone's summary


def test_steps_have_the_same_hashes_in_every_clone(root: Path, tmp_path: Path):
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(root), str(clone))
    for repository in (root, clone):
        tag_all(repository, Course.load(commit(repository)))
    assert out(root, "rev-list", "m1") == out(clone, "rev-list", "m1")


def test_each_step_but_the_last_is_proved_by_its_own_tests_alone(root: Path):
    made = course()
    results = verify(root, made, [made.get("m1")], with_steps=True)
    assert [(r.name, r.modules, r.tests, r.problems) for r in results] == [("M1.1", 2, 1, []), ("m1", 3, 3, [])]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tests/m1/test_wheel.py": "def test_no():\n    assert False\n"}, "its tests failed"),
        ({"tests/m1/test_wheel.py": ALONE, "folovllm/wheel.py": "import no_such_package\n"}, "No module named"),
        ({"tests/m1/test_wheel.py": "import pytest\n\npytest.importorskip('no_such_package')\n"}, "was skipped"),
    ],
)
def test_a_step_that_does_not_stand_by_itself_is_told(root: Path, changes: dict[str, str], problem: str):
    made = course(**changes)
    result = prove(root, stages(made, made.get("m1"))[0])
    assert problem in "\n".join(result.problems)


def test_read_shows_a_milestone_as_its_commits_or_one_of_them(root: Path, capsys):
    assert cli.main(["read", "m1"], root) == 0
    printed = capsys.readouterr().out
    assert "M1.1  A wheel turns  (7 lines)" in printed
    assert "see it:     python -m pytest tests/m1/test_wheel.py" in printed
    assert (
        printed.index("+++ b/folovllm/wheel.py") < printed.index("\nM1.2 ") < printed.index("+++ b/folovllm/engine.py")
    )
    assert cli.main(["read", "m1", "2"], root) == 0
    printed = capsys.readouterr().out
    assert ("b/folovllm/engine.py" in printed, "b/folovllm/wheel.py" in printed) == (True, False)
    assert cli.main(["read", "m1", "9"], root) == 2
    assert "STEP must be 1 to " in capsys.readouterr().err
    (root / "milestones/dormant.toml").unlink()  # this course has no Base with one child
    assert cli.main(["verify", "--static"], root) == 0


def test_head_with_steps_out_of_order_is_not_tagged(root: Path, capsys):
    spec = root / SPEC
    spec.write_text(spec.read_text(encoding="utf-8").replace('["folovllm/wheel.py"]', '["folovllm/nothing.py"]'))
    git(root, "commit", "--quiet", "--no-gpg-sign", "--all", "--message", "wrong", env=IDENTITY)
    assert cli.main(["tag"], root) == 2
    assert "'folovllm/nothing.py' matches no file" in capsys.readouterr().err
    assert out(root, "tag", "--list") == ""
