"""Every example of this milestone runs from a clone with no argument, and says what it sets out to say."""

from __future__ import annotations

from tests.helpers import Printed


def test_forks_share_the_prompt_copy_its_last_block_and_leave_nothing(printed: Printed) -> None:
    text = printed["m3_forks.py"]
    first, second = text.split("after step 2")
    assert first.count("1×4 2×4") == 4  # four tables, the same two blocks
    assert "2 blocks in use, 2 shared; without sharing 8" in first
    assert "2×" not in second.split("\n\n")[0]  # the partly filled one has been copied by three of four
    assert text.strip().endswith("blocks in use at the end: 0")


def test_more_beams_never_find_a_less_likely_text(printed: Printed) -> None:
    lines = printed["m3_beam_search.py"].splitlines()
    logprobs = {line[:24].strip(): float(line.split("=")[1].split()[0]) for line in lines[:4]}
    assert logprobs["greedy"] < logprobs["best of 4 beams"]
    assert logprobs["best of 2 beams"] <= logprobs["best of 8 beams"]


def test_preemption_is_seen_and_changes_no_token(printed: Printed) -> None:
    roomy, recompute, swap = printed["m3_preemption.py"].split(" preemptions in ")[:3]
    assert roomy.endswith("200 blocks: 0")
    assert not recompute.endswith(" 0")
    assert not swap.endswith(" 0")
    drawing = printed["m3_preemption.py"].split("\n\n", 1)[1]
    assert "·" in drawing
    assert "░" in drawing
    assert "recompute True, swap True" in drawing
