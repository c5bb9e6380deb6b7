"""Reading milestone.toml: patterns, and errors that name the file and the key."""

from __future__ import annotations

import pytest

from milestones.spec import MilestoneError, find_specs, matches, parse_milestone

SPEC = """\
title = { en = "Ground", zh = "地基" }
summary = { en = "The ground.", zh = "地基。" }
files = ["a.py"]
tests = []
examples = []
notes = []
changes = []
forbidden = []
"""


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("a/b.py", "a/b.py", True),
        ("a/b.py", "a/bxpy", False),
        ("a/*.py", "a/b.py", True),
        ("a/*.py", "a/b/c.py", False),
        ("a/**", "a/b/c.py", True),
        ("a/**", "a", False),
        ("a/**", "ab/c", False),
        ("docs/*/m0/**", "docs/en/m0/img/x.svg", True),
        ("docs/*/m0/**", "docs/en/m1/x.md", False),
        ("**/x.py", "x.py", True),
        ("**/x.py", "a/b/x.py", True),
    ],
)
def test_a_star_stays_in_its_folder_and_two_cross_folders(pattern: str, path: str, expected: bool) -> None:
    assert matches(pattern, path) is expected


def test_a_milestone_without_steps_is_one() -> None:
    assert parse_milestone(3, SPEC).steps == []
    assert parse_milestone(3, SPEC).label == "M3: Ground"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SPEC + "tets = []\n", "milestones/m2/milestone.toml: unknown key 'tets'"),
        (SPEC.replace("files", "# files"), "milestones/m2/milestone.toml: files is missing"),
        (SPEC.replace("tests = []", "tests = [1]"), "tests must be a list of non-empty strings, got [1]"),
        (SPEC.replace(', zh = "地基"', ""), "title must have exactly en and zh"),
        (SPEC.replace("[", "", 1), "milestones/m2/milestone.toml: "),
        (SPEC + "steps = 3\n", "steps must be written as [[steps]] tables"),
    ],
)
def test_a_misspelt_milestone_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(MilestoneError) as error:
        parse_milestone(2, text)
    assert message in str(error.value)


def test_milestones_are_numbered_without_a_gap() -> None:
    assert find_specs({"milestones/m1/milestone.toml": 0, "milestones/m0/milestone.toml": 0}) == [0, 1]
    with pytest.raises(MilestoneError, match=r"without a gap, found \[0, 2\]"):
        find_specs({"milestones/m0/milestone.toml": 0, "milestones/m2/milestone.toml": 0})
    with pytest.raises(MilestoneError, match=r"m0/milestone\.toml is missing"):
        find_specs({"README.md": 0})
