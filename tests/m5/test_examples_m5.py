"""Every example of this milestone runs from a clone with no argument, and says what it sets out to say."""

from __future__ import annotations

import re

import pytest

from tests.helpers import Printed


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def steps(drawing: str) -> list[tuple[int, int]]:
    """(tokens that were decoded, tokens of prompts) of each step drawn."""
    rows = re.findall(r"^ +(\d+) +(\d+) +(\d+) +[█▒]", drawing, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1))
    return [(int(decoded), int(prompt)) for _, decoded, prompt in rows]


def test_a_whole_prompt_takes_one_step_and_chunks_take_what_the_budget_leaves(printed: Printed) -> None:
    whole, chunks = printed["m5_chunked_prefill.py"].split("In chunks beside the decodes, 128 tokens in a step")
    assert steps(whole)[3:6] == [(8, 0), (8, 500), (9, 0)]
    assert steps(chunks)[3:10] == [(8, 0), *[(8, 120)] * 4, (8, 20), (9, 0)]


def test_chunks_change_no_token(printed: Printed) -> None:
    text = printed["m5_chunked_prefill.py"]
    most = dict(re.findall(r"^(whole|chunks) +(\d+) +\d+\.\d ms", text, re.MULTILINE))
    assert most == {"whole": "508", "chunks": "128"}
    assert text.strip().endswith("the same tokens: True")


def test_a_smaller_budget_makes_smaller_steps_and_more_of_them(printed: Printed) -> None:
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in printed["m5_budget.py"].splitlines()
        if line.startswith("│")
    ]
    found = [(int(budget), int(count), int(longest), int(told)) for budget, count, _, longest, _, told in rows]
    for budget, count, longest, told in found:
        assert longest == min(budget, 608)
        assert count == -(-600 // (budget - 8))  # eight tokens of each step are the others'
        assert told == 8 * count  # who gain one in every step
    assert [budget for budget, *_ in found] == [16, 32, 64, 128, 256, 640]


def test_a_budget_flattens_the_load_and_shortens_the_worst_gap(printed: Printed) -> None:
    found = re.findall(r"budget +(\d+): .* at most +(\d+) tokens, worst gap +([\d.]+)", printed["m5_load.py"])
    (_, whole, gap), *chunks = [(int(budget), int(largest), float(worst)) for budget, largest, worst in found]
    assert whole > 200
    assert [largest for _, largest, _ in chunks] == [budget for budget, _, _ in chunks] == [32, 16]
    assert [worst for _, _, worst in chunks] == [2.0, 1.0]
    assert gap > 10
