"""Every example of this milestone runs from a clone with no argument, and says what it sets out to say."""

from __future__ import annotations

import re
import sys
from itertools import pairwise

import pytest

from tests.helpers import run_example
from tests.m4.cpu_target import NEEDS_KERNELS

NAMES = [
    "m6_chat_turns.py",
    "m6_shared_prefix.py",
    "m6_tenants.py",
    "m6_batch_invariance.py",
    "m6_radix_tree.py",
    "m6_routing.py",
]


@pytest.fixture(autouse=True)
def wide(either_cpu, monkeypatch) -> None:
    """So that no table is broken, and pytest's own arguments are not the example's."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "argv", ["example"])


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]


def test_each_turn_of_a_chat_finds_all_of_the_turn_before_but_for_its_last_block() -> None:
    text = run_example(NAMES[0])
    table = rows(text)
    assert len(table) == 5
    assert table[0][3] == "0"
    for before, row in pairwise(table):
        prompt, cached, computed = (int(cell) for cell in row[2:5])
        assert cached > int(before[2]) - 16  # the question, and what was answered
        assert computed == prompt - cached
    assert "the same answers without a cache: True" in text


def test_examples_are_computed_once_for_all_questions() -> None:
    text = run_example(NAMES[1])
    table = rows(text)
    assert len(table) == 5
    for _, prompt, cold, warm, *_ in table:  # the last two are times
        assert cold == "0"
        assert int(warm) > int(prompt) - 64
    match = re.search(r"hit rate (\d+)%", text)
    assert match
    assert int(match[1]) > 85
    assert "the same answers: True" in text


def test_a_salt_hides_what_another_tenant_has_asked() -> None:
    text = run_example(NAMES[2])
    cached = [int(row[3]) for row in rows(text)]
    assert cached[0] == 0 < cached[1]  # without salts, Eve learns it
    assert cached[2] == cached[4] == 0 < cached[3]
    assert "all got the same answer: True" in text


@NEEDS_KERNELS
def test_in_the_mode_every_bit_stays_and_without_it_some_change() -> None:
    table = rows(run_example(NAMES[3]))
    assert [row[:2] for row in table] == [[d, m] for d in ("float32", "bfloat16") for m in ("False", "True")]
    changed = {mode: {count for row in table if row[1] == mode for count in row[2:]} for mode in ("False", "True")}
    assert changed["True"] == {"24 of 24"} < changed["False"] | {"24 of 24"}


def test_a_radix_tree_splits_an_edge_where_a_prompt_leaves_it() -> None:
    text = run_example("m6_radix_tree.py")
    assert re.findall(r"(\d) of \d tokens found", text) == ["0", "4", "2", "6"]
    assert "C: 2 of 3 tokens found\n   1 2\n      3 4\n         5 6\n         7 8\n      9\n" in text


def test_a_router_that_knows_prefixes_finds_more_and_one_that_looks_at_the_load_too_keeps_it_even() -> None:
    found = re.findall(r"^(\w+) +(\d+)% found, .*: \[(.*)\]$", run_example("m6_routing.py"), re.MULTILINE)
    share = {name: int(percent) for name, percent, _ in found}
    sent = {name: [int(number) for number in numbers.split(", ")] for name, _, numbers in found}
    assert share["round_robin"] < share["sticky"] < share["longest_prefix"] <= share["balanced"] + 1
    assert max(sent["longest_prefix"]) > 150
    assert max(sent["balanced"]) - min(sent["balanced"]) <= 12
    assert all(sum(numbers) == 300 for numbers in sent.values())
