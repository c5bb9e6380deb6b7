"""`python -m milestones size`: counted by hand on the tiny course, and held against limits."""

from __future__ import annotations

from pathlib import Path

from milestones import cli, size
from milestones.size import Row, Size, measure, size_of
from milestones.sources import File
from tests.milestones.conftest import make_course


def test_a_package_is_counted_by_its_lines_and_cpp_apart():
    tree = {
        "folovllm/a.py": File(b"one\n\nthree\n"),
        "folovllm/b/__init__.py": File(b"one\n"),
        "folovllm/csrc/x.cpp": File(b"1\n2\n"),
        "folovllm/csrc/x.h": File(b"1\n"),
        "folovllm/assets/words.txt": File(b"no code\n"),
        "tests/test_a.py": File(b"no part of the package\n"),
    }
    assert size_of(tree) == Size(lines=4, files=2, cpp=3)


def test_each_milestone_has_a_row_and_the_root_says_what_stands_around():
    course = make_course(**{"folovllm/bench/speed.py": "a\nb\n"})
    m0, m1, around, root, _, tests = measure(course, steps=False)
    assert (m0.name, m0.size.lines, m0.size.files) == ("m0", 4, 2)
    assert (m1.name, m1.size.lines, m1.size.files) == ("m1", 9, 3)
    assert (around.name, around.size) == ("around", Size(lines=2, files=1, cpp=0))
    assert (root.name, root.size.lines, tests.name) == ("root", 11, "tests")


def test_only_what_passes_its_limit_is_named(monkeypatch):
    monkeypatch.setattr(size, "LIMITS", {"m1": Size(lines=10, files=2, step_functions=5)})
    row = Row("m1", Size(lines=10, files=3, cpp=9, step_functions=6))
    assert row.excesses() == [
        "m1: files must be at most 2, got 3",
        "m1: step_functions must be at most 5, got 6",
    ]
    assert Row("m2", Size(lines=99)).excesses() == []


def test_what_is_known_to_be_too_large_is_said_and_may_not_grow(monkeypatch):
    monkeypatch.setattr(size, "LIMITS", {"m1": Size(lines=10)})
    monkeypatch.setattr(size, "NOT_YET", {"m1": Size(lines=12)})
    assert Row("m1", Size(lines=12)).beyond() == ["m1: lines must be at most 10, got 12"]
    assert Row("m1", Size(lines=12)).excesses() == []
    assert Row("m1", Size(lines=13)).excesses() == ["m1: lines must be at most 10, got 13"]


def test_the_command_ends_in_one_where_a_limit_is_passed(repository: Path, monkeypatch, capsys):
    monkeypatch.setattr(size, "LIMITS", {"m0": Size(lines=4)})
    assert cli.main(["size", "--no-steps"], repository) == 0
    assert "4 of 4" in capsys.readouterr().out
    monkeypatch.setattr(size, "LIMITS", {"m0": Size(lines=3)})
    assert cli.main(["size", "--no-steps"], repository) == 1
    assert "m0: lines must be at most 3, got 4" in capsys.readouterr().out
