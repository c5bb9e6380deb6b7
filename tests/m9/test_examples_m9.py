"""The example of this milestone runs from a clone with no argument, and says what it sets out to say."""

from __future__ import annotations

import re

from tests.helpers import run_example
from tests.m9.support import RankThread

NAMES = ["m9_two_ranks.py", "m9_winners.py"]


def test_ranks_have_halves_and_the_same_tokens_come_out(rank_threads: list[RankThread]) -> None:
    text = run_example(NAMES[0])
    rows = [re.findall(r"[\d.]+ MB", line) for line in text.splitlines() if line.strip().startswith("rank ")]
    assert len(rows) == 2
    assert rows[0] == rows[1]
    steps, sums = (int(number) for number in re.search(r"(\d+) steps, (\d+) sums", text).groups())
    assert sums == 9 * steps  # of four layers
    assert "the same tokens as one rank's: True" in text


def test_winners_of_the_parts_draw_the_same_tokens_as_all_logits() -> None:
    drawn = re.findall(r"tokens by .*?: +(\[.*\])", run_example(NAMES[1]))
    assert len(drawn) == 2
    assert drawn[0] == drawn[1]
