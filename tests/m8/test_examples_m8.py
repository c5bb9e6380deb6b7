"""The example of this milestone runs from a clone with no argument, and says what it sets out to say."""

from __future__ import annotations

import re

from tests.helpers import run_example


def test_drafts_bring_more_than_one_token_a_step_and_change_none() -> None:
    text = run_example("m8_speculation.py")
    assert text.endswith("the same tokens as without guesses: True\n")
    new, again, question = (
        [float(gain) for gain in re.findall(r"([\d.]+) with", line)] for line in text.splitlines()[:3]
    )
    assert new[0] < 1.1  # nothing to look up
    assert min(new[1], *again, *question) > 3


def test_a_head_is_right_as_often_as_a_draft_model() -> None:
    draft_model, head = run_example("m8_eagle.py").splitlines()
    gains = [float(re.findall(r"brings ([\d.]+) tokens", line)[0]) for line in (draft_model, head)]
    assert min(gains) > 3
    assert draft_model.endswith("same tokens: True")
    assert head.endswith("same tokens: True")
