"""The example of this milestone runs from a clone with no argument, and says what it sets out to say."""

from __future__ import annotations

import re

import pytest

from tests.helpers import run_example

NAMES = ["m10_experts.py"]


def test_more_sequences_read_more_experts_as_chance_says_and_tokens_are_the_oracles() -> None:
    text = run_example(NAMES[0])
    found = re.findall(r"(\d+) sequences: a step reads +([\d.]+) experts of a layer; at random +([\d.]+)", text)
    assert [int(count) for count, _, _ in found] == [1, 2, 4, 8, 16, 32]
    assert float(found[0][1]) == 4.0
    for _, read, expected in found:
        assert float(read) == pytest.approx(float(expected), rel=0.1)
    assert "the same tokens as transformers: True" in text
