"""The example of a trace says what it sets out to say."""

from __future__ import annotations

import sys

import pytest

from tests.helpers import run_example
from tests.m6.test_examples_m6 import rows


@pytest.fixture(autouse=True)
def wide(either_cpu, monkeypatch) -> None:
    """So that no table is broken, and pytest's own arguments are not the example's."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "argv", ["example"])


def test_a_trace_tells_forks_copies_hits_and_who_gives_way() -> None:
    table = {int(row[0]): row for row in rows(run_example("trace.py"))}
    assert table[1][1:] == ["A-0 0..37", "", "9", "A-1 forks from A-0"]
    assert table[2][1] == "B-0 0..45"
    assert "is copied to" in table[2][4]
    assert table[9][4] == "C-0 finds 32 tokens"
    assert [step for step, row in table.items() if "C-0 gives way" in row[4]] == [14]
    assert table[17][4] == "C-0 finds 32 tokens"
