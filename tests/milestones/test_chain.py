"""Chain resolution: which version of a file a milestone has, and what is refused."""

from __future__ import annotations

import pytest

from milestones.chain import Course
from milestones.diffs import compare
from milestones.spec import MilestoneError
from tests.milestones.conftest import M0, M1, make_course

M2 = M1.replace("Engine", "Later").replace("folovllm/engine.py", "folovllm/later.py").replace("m1", "m2")


def text(course: Course, path: str, number: int) -> str:
    return course.tree(number)[path].data.decode()


def test_a_stored_version_wins_and_the_root_comes_last(course: Course) -> None:
    assert text(course, "folovllm/__init__.py", 0) == "VERSION = 0\n"
    assert text(course, "folovllm/__init__.py", 1) == "VERSION = 1\n"


def test_the_version_of_a_later_milestone_serves_the_earlier_ones_too() -> None:
    """Changed only at m2, the file is stored once, under m1, and m0 finds it there."""
    course = make_course(
        **{
            "milestones/m0/folovllm/__init__.py": None,
            "milestones/m1/folovllm/__init__.py": "VERSION = 1\n",
            "folovllm/__init__.py": "VERSION = 2\n",
            "folovllm/later.py": "",
            "tests/m2/test_later.py": "",
            "milestones/m1/milestone.toml": M1.replace('"folovllm/__init__.py"', ""),
            "milestones/m2/milestone.toml": M2,
        }
    )
    versions = [text(course, "folovllm/__init__.py", k) for k in range(3)]
    assert versions == ["VERSION = 1\n", "VERSION = 1\n", "VERSION = 2\n"]
    assert course.problems() == []


def test_a_tree_holds_everything_from_its_start_and_nothing_unlisted(course: Course) -> None:
    assert sorted(course.tree(1)) == [
        "docs/en/m0/index.md",
        "docs/zh/m0/index.md",
        "folovllm/__init__.py",
        "folovllm/base.py",
        "folovllm/engine.py",
        "pyproject.toml",
        "tests/m0/test_base.py",
        "tests/m1/test_engine.py",
    ]


def test_what_arrives_and_what_changes(course: Course) -> None:
    assert course.arriving(1) == ["folovllm/engine.py", "tests/m1/test_engine.py"]
    assert course.changed(1) == ["folovllm/__init__.py"]
    assert course.changed(0) == []


def test_an_exact_path_beats_a_pattern() -> None:
    course = make_course(**{"milestones/m0/milestone.toml": M0.replace('"folovllm/base.py"', '"folovllm/*.py"')})
    assert course.arrival["folovllm/base.py"] == 0
    assert course.arrival["folovllm/engine.py"] == 1
    assert course.problems() == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"milestones/m0/folovllm/__init__.py": "VERSION = 1\n"},
            "milestones/m0/folovllm/__init__.py: equal to the next version; delete this copy",
        ),
        (
            {"milestones/m0/folovllm/engine.py": "class Old: ...\n"},
            "milestones/m0/folovllm/engine.py: folovllm/engine.py arrives only at m1",
        ),
        (
            {"folovllm/stray.py": ""},
            "folovllm/stray.py: belongs to no milestone",
        ),
        (
            {"milestones/m1/milestone.toml": M1.replace('engine.py"', 'engine.py", "folovllm/base.py"')},
            "folovllm/base.py: claimed by m0 and m1; one has to let go",
        ),
        (
            {"milestones/m1/milestone.toml": M1.replace('engine.py"', 'engine.py", "folovllm/gone.py"')},
            "milestones/m1/milestone.toml: 'folovllm/gone.py' matches no file",
        ),
        (
            {"milestones/m1/milestone.toml": M1.replace('"folovllm/__init__.py"', "")},
            "milestones/m1/milestone.toml: folovllm/__init__.py changes here; add it to `changes`",
        ),
        (
            {"milestones/m1/milestone.toml": M1.replace("__init__", "base")},
            "milestones/m1/milestone.toml: folovllm/base.py is in `changes` but does not change",
        ),
        ({"milestones/m5/folovllm/x.py": ""}, "milestones/m5/: has files but no milestone.toml"),
    ],
)
def test_each_broken_rule_is_named_with_its_file(changes: dict[str, str], problem: str) -> None:
    assert any(found.startswith(problem) for found in make_course(**changes).problems())


def test_an_unknown_milestone_lists_the_known(course: Course) -> None:
    assert course.get("M1").number == 1
    with pytest.raises(MilestoneError, match="no milestone is called 'm9'; there are m0, m1"):
        course.get("m9")


def test_the_diff_of_two_milestones_is_the_one_git_would_print(course: Course) -> None:
    changes = compare(course.tree(0), course.tree(1))
    assert [c.path for c in changes] == [
        "folovllm/__init__.py",
        "folovllm/engine.py",
        "tests/m1/test_engine.py",
    ]
    assert "".join(changes[0].lines()) == (
        "--- a/folovllm/__init__.py\n+++ b/folovllm/__init__.py\n@@ -1 +1 @@\n-VERSION = 0\n+VERSION = 1\n"
    )
    assert next(iter(changes[1].lines())) == "--- /dev/null\n"
    assert changes[0].added_and_removed() == (1, 1)
    assert changes[1].added_and_removed() == (5, 0)


def test_a_diff_can_be_narrowed_to_a_folder(course: Course) -> None:
    changes = compare(course.tree(0), course.tree(1), "tests/")
    assert [c.path for c in changes] == ["tests/m1/test_engine.py"]
    with pytest.raises(MilestoneError, match="PATH must be a file or folder"):
        compare(course.tree(0), course.tree(1), "test")
