"""Speculative sampling (examples/m5_speculation.py): whatever the draft, the target's distribution is drawn from."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path
from random import Random

import pytest

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "m5_speculation.py"))
TARGET = [0.4, 0.1, 0.3, 0.2]
DRAFTS = [[0.5, 0.3, 0.1, 0.1], [0.25] * 4, TARGET, [0.0, 0.0, 0.0, 1.0], [0.9, 0.1, 0.0, 0.0]]


def draw(draft: list[float], count: int) -> tuple[list[float], float]:
    """(each token's share among `count` draws, the share of drafted tokens that were kept)."""
    random, counts, kept = Random(1), Counter[int](), 0
    for drafted in random.choices(range(4), draft, k=count):
        token, was_kept = EXAMPLE["accept_or_replace"](draft, TARGET, drafted, random)
        counts[token] += 1
        kept += was_kept
    return [counts[token] / count for token in range(4)], kept / count


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_tokens_are_the_targets_and_the_draft_decides_only_how_many_are_kept(draft: list[float]) -> None:
    shares, kept = draw(draft, 20_000)  # one standard deviation is 0.0035
    assert shares == pytest.approx(TARGET, abs=0.015)
    assert kept == pytest.approx(EXAMPLE["accepted_share"](draft, TARGET), abs=0.015)


def test_taking_every_drafted_token_would_be_seen() -> None:
    random = Random(1)
    counts = Counter(random.choices(range(4), DRAFTS[0], k=20_000))
    assert counts[0] / 20_000 != pytest.approx(TARGET[0], abs=0.015)


def test_tokens_of_a_step_by_hand() -> None:
    assert EXAMPLE["tokens_per_step"](0.5, 2) == 1.75
    assert EXAMPLE["tokens_per_step"](1.0, 4) == 5
    assert EXAMPLE["accepted_share"](DRAFTS[0], TARGET) == pytest.approx(0.4 + 0.1 + 0.1 + 0.1)
