"""`verify --static` finds what is dormant in a tree, on the tiny course of conftest.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from milestones import dormant
from milestones.chain import Course
from milestones.sources import File, working_tree
from tests.milestones.conftest import make_course

ROOT = Path(__file__).resolve().parents[2]


def found(code: str, test: str = "") -> list[str]:
    return dormant.dormant({"folovllm/x.py": File(code.encode()), "tests/m0/test_x.py": File(test.encode())})


def test_a_method_with_an_empty_body_is_found_and_a_protocols_is_not() -> None:
    body = '    def forget(self):\n        """Drop it."""\n'
    assert found(f"class Pool:\n{body}") == ["Pool.forget: empty"]
    assert found(f"class Pool(Protocol):\n{body}") == []
    assert found("class Pool:\n    @abstractmethod\n    def forget(self): ...\n") == []


@pytest.mark.parametrize("use", ["Base()", "engine = Engine(Base)", "NAMES = {'base': 'folovllm.x.Base'}"])
def test_a_class_with_one_child_is_found_unless_something_uses_it(use: str) -> None:
    code = "class Base: x = 1\nclass Child(Base): y = 1\ndef f(base: Base) -> Base: isinstance(base, Base)\n"
    assert found(code) == ["Base: single base"]
    assert found(code + use) == []
    assert found(code + "class Second(Base): z = 1\n") == []


def test_an_attribute_that_nothing_reads_is_found_and_a_test_reads_public_ones_only() -> None:
    code = "class Stats:\n    def f(self):\n        self.hits = f()\n        self._misses = f()\n"
    assert found(code) == ["Stats._misses: unread", "Stats.hits: unread"]
    assert found(code, "print(stats.hits, stats._misses)") == ["Stats._misses: unread"]
    assert found("class Row:\n    rank: int\n") == ["Row.rank: unread"]


def test_a_private_attribute_that_keeps_its_first_value_is_found() -> None:
    code = (
        "class Queue:\n    def __init__(self):\n        self._seqs = []\n    def f(self):\n        if self._seqs: g()\n"
    )
    assert found(code) == ["Queue._seqs: unwritten"]
    for change in (
        "self._seqs.append(1)",
        "self._seqs = f()",
        "self._seqs += f()",
        "g(self._seqs)",
        "self._seqs[0] = 1",
    ):
        assert found(f"{code}        {change}\n") == [], change


def test_the_list_excuses_and_an_entry_that_excuses_nothing_is_an_error() -> None:
    assert dormant.problems(make_course(**{dormant.LIST: None})) == [
        "Base: single base in m1: take it out, or give milestones/dormant.toml the reason"
    ]
    listed = '"Base: single base" = "tiny"\n"Gone: single base" = "was once"\n'
    assert dormant.problems(make_course(**{dormant.LIST: listed})) == [
        "milestones/dormant.toml: Gone: single base is dormant in no tree"
    ]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository, not an archive of it")
def test_nothing_is_dormant_in_this_repository_but_what_the_list_says() -> None:
    assert dormant.problems(Course.load(working_tree(ROOT))) == []
