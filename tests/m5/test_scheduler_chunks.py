"""The scheduler alone: what a step computes of whose prompt, and who waits for what.

Blocks of 4 tokens, and no model. Where nothing else is said a step has a budget of 8 tokens.
"""

from __future__ import annotations

import pytest

from folovllm.request import SequenceStatus
from tests.m5.support import ChunkDesk, growing_beside_a_long_prompt, preempted_on_the_way

RUNNING, WAITING, SWAPPED = SequenceStatus.RUNNING, SequenceStatus.WAITING, SequenceStatus.SWAPPED

# Settings, the requests (name, prompt, output), and what each step computes of whose prompt.
PLANS = {
    "a prompt longer than the budget": ({}, [("a", 18, 2)], [{"a": 8}, {"a": 8}, {"a": 2}, {"a": 1}]),
    "a last chunk of one token": ({}, [("a", 9, 2)], [{"a": 8}, {"a": 1}, {"a": 1}]),
    "several prompts share a step": (
        {}, [("a", 2, 2), ("b", 3, 2), ("c", 5, 2), ("d", 2, 2)],
        [{"a": 2, "b": 3, "c": 3}, {"a": 1, "b": 1, "c": 2, "d": 2}, {"c": 1, "d": 1}],
    ),
    "a budget of one serves one after the other": (
        {"budget": 1}, [("a", 3, 2), ("b", 2, 1)], [{"a": 1}] * 4 + [{"b": 1}] * 2
    ),
    "a threshold leaves room for others": (
        {"threshold": 3, "partial": 3}, [("x", 7, 1), ("y", 7, 1), ("z", 7, 1)],
        [{"x": 3, "y": 3, "z": 2}] * 2 + [{"x": 1, "y": 1, "z": 3}],
    ),
    "a short prompt is no partial one": (
        {"threshold": 3}, [("x", 7, 1), ("short", 3, 1)], [{"x": 3, "short": 3}, {"x": 3}, {"x": 1}]
    ),
    "none overtakes a long prompt that waits for another": (
        {"threshold": 3}, [("x", 7, 1), ("long", 7, 1), ("short", 1, 1)],
        [{"x": 3}, {"x": 3}, {"x": 1, "long": 3, "short": 1}, {"long": 3}, {"long": 1}],
    ),
    "without chunks a prompt waits for a step that takes all of it": (
        {"chunks": False, "budget": 10}, [("a", 4, 2), ("b", 7, 2), ("c", 6, 2)],
        [{"a": 4}, {"a": 1, "b": 7}, {"b": 1, "c": 6}, {"c": 1}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("plan", PLANS)
def test_steps_are_these(plan):
    settings, requests, steps = PLANS[plan]
    desk = ChunkDesk(**settings)
    for name, prompt, output in requests:
        desk.add(name, prompt, max_tokens=output)
    assert desk.run() == steps


# One budget


def test_decodes_come_first_and_prompts_get_what_they_leave():
    """The drawing in core/scheduler.py."""
    desk = ChunkDesk()
    desk.add("b", 4, max_tokens=9)
    desk.step()
    desk.add("a", 18, max_tokens=9)
    desk.add("c", 9, max_tokens=9)
    assert desk.step() == {"b": 1, "a": 7}
    assert desk.step() == {"b": 1, "a": 7}
    assert desk.step() == {"b": 1, "a": 4, "c": 3}
    assert desk.step() == {"b": 1, "a": 1, "c": 6}


def test_the_oldest_prompt_does_not_come_before_the_newest_decode():
    """Under the priority policy the one that is prefilled can be the first in line, too."""
    desk = ChunkDesk(policy="priority")
    for name in "abcdefg":
        desk.add(name, 1, max_tokens=9, priority=1)
    desk.step()
    desk.add("urgent", 5, max_tokens=1)
    for _ in range(3):
        output = desk.schedule()
        assert desk.scheduler.running[0].request_id == "urgent"
        assert [seq.request_id for seq in output.scheduled_seqs] == [*"abcdefg", "urgent"]
        assert output.num_scheduled_tokens == [1] * 8
        desk.update(output)


def test_no_more_sequences_run_than_the_budget_has_tokens():
    desk = ChunkDesk(budget=3, max_num_seqs=8)
    for name in "abcd":
        desk.add(name, 1, max_tokens=4)
    assert desk.step() == {"a": 1, "b": 1, "c": 1}
    assert desk.step() == {"a": 1, "b": 1, "c": 1}


def test_a_prompt_without_a_token_left_in_a_step_keeps_its_place():
    desk = ChunkDesk(budget=5, max_num_seqs=5)
    desk.add("b", 3, n=4, max_tokens=4)
    desk.add("long", 9, max_tokens=1)
    assert desk.step() == {"b": 3, "long": 2}
    assert [desk.step() for _ in range(3)] == [{"b": 4, "long": 1}] * 3  # the last token is drawn and not computed
    assert desk.run() == [{"long": 4}]


# Threshold and number of prompts at once


def test_so_many_prompts_are_in_the_works_at_once_and_no_more():
    desk = ChunkDesk(threshold=3, partial=2)
    for name in "xyz":
        desk.add(name, 7, max_tokens=1)
    assert desk.step() == {"x": 3, "y": 3}
    assert desk.step() == {"x": 3, "y": 3}
    assert desk.step() == {"x": 1, "y": 1, "z": 3}


def test_the_threshold_holds_for_who_comes_back_from_a_preemption_as_well():
    desk = ChunkDesk(6, budget=4, threshold=3)
    desk.add("a", 3, max_tokens=14)
    assert desk.step() == {"a": 3}
    desk.add("long", 16, max_tokens=1)
    assert [desk.step() for _ in range(5)] == [{"a": 1, "long": 3}] * 5
    assert desk.step() == {"a": 1}  # takes a block that `long` had
    assert desk.status("long") == [WAITING]
    assert [step["long"] for step in desk.run() if "long" in step] == [3] * 5 + [1]


# Order


def test_more_urgent_prompts_get_their_chunks_first():
    desk = ChunkDesk(policy="priority", budget=6, threshold=4, partial=2)
    desk.add("lazy", 16, max_tokens=1, priority=5)
    assert desk.step() == {"lazy": 4}
    desk.add("urgent", 12, max_tokens=1, priority=1)
    assert desk.step() == {"lazy": 4, "urgent": 2}  # what has begun goes on
    assert desk.step() == {"urgent": 4, "lazy": 2}
    assert desk.step() == {"urgent": 4, "lazy": 2}


def test_a_prompt_that_has_begun_is_not_overtaken_by_those_that_come_later():
    """A prompt of 20 beside ever new ones: three tokens in every step are the least that it gets."""
    desk = ChunkDesk(budget=4, max_num_seqs=2, partial=4)
    desk.add("long", 20, max_tokens=1)
    took = []
    while "long" not in took[-1:] and not desk.requests["long"].is_finished():
        desk.add(f"late{len(took)}", 2, max_tokens=3)
        took.append(desk.step()["long"])
    assert took == [4] * 5


# Blocks


def test_a_prompt_begins_when_blocks_for_all_of_it_are_free():
    desk = ChunkDesk(8)
    desk.add("a", 8, max_tokens=4)  # 2 blocks, and a third from its second token on
    desk.step()
    desk.add("long", 24, max_tokens=1)  # 6 blocks; its first chunk would take 2
    assert desk.step() == {"a": 1}
    assert [desk.step() for _ in range(2)] == [{"a": 1}] * 2
    assert desk.run() == [{"long": 8}] * 3


@pytest.mark.parametrize(("length", "joins"), [(8, True), (9, False)])
def test_blocks_that_another_prompt_will_need_are_not_free(length, joins):
    """The first takes 1 block of 6 now and 3 more later: 2 are left."""
    desk = ChunkDesk(6, threshold=4, partial=2)
    desk.add("x", 16, max_tokens=1)
    desk.add("y", length, max_tokens=1)
    assert desk.step() == ({"x": 4, "y": 4} if joins else {"x": 4})
    assert desk.step() == ({"x": 4, "y": 4} if joins else {"x": 4})  # where it has blocks already the rest counts, too
    desk.run()
    assert desk.scheduler.preempter.num_recomputed == 0


def test_a_chunk_without_a_block_waits_where_it_is():
    """Nobody gives way for a prefill in a step in which others go on: they will end."""
    desk = growing_beside_a_long_prompt()
    (seq,) = desk.requests["long"].get_seqs()
    for _ in range(4):
        assert desk.step() == {"a": 1}
        assert (seq.status, seq.num_computed_tokens) == (RUNNING, 12)


def test_a_decode_takes_the_blocks_of_a_newer_prompt_that_is_on_its_way():
    desk = preempted_on_the_way("recompute")
    (seq,) = desk.requests["long"].get_seqs()
    assert (seq.status, seq.num_computed_tokens) == (WAITING, 0)
    steps = desk.run()
    assert [step["long"] for step in steps if "long" in step] == [4, 4, 4, 3, 1, 1]  # all of it once more
    assert seq.get_output_len() == 3


def test_a_prompt_that_was_swapped_on_its_way_goes_on_where_it_was():
    desk = preempted_on_the_way("swap")
    (seq,) = desk.requests["long"].get_seqs()
    assert (seq.status, seq.num_computed_tokens) == (SWAPPED, 12)
    steps = desk.run()
    assert [step["long"] for step in steps if "long" in step] == [3, 1, 1]


def test_nobody_is_let_in_where_a_prompt_lacks_a_block():
    """Its chunk needs two blocks and one is free: whoever came later does not get that one."""
    desk = ChunkDesk(9, budget=9)
    desk.add("a", 2, max_tokens=8)
    assert desk.step() == {"a": 2}
    desk.add("long", 32, max_tokens=1)  # 8 blocks
    assert [desk.step() for _ in range(3)] == [{"a": 1, "long": 8}] * 3  # `a` has taken its second block
    desk.add("tiny", 1, max_tokens=1)
    assert desk.kv.pool.num_free == 1
    assert [desk.step() for _ in range(4)] == [{"a": 1}] * 4
    assert desk.run() == [{"long": 8, "tiny": 1}]


@pytest.mark.parametrize("n", [1, 3])
def test_prompts_that_fit_one_step_are_served_alike_with_chunks_and_without(n):
    steps = []
    for chunks in (False, True):
        desk = ChunkDesk(9, budget=64, num_swap_blocks=10, chunks=chunks)
        for i, length in enumerate((3, 9, 5, 12, 1)):
            desk.add(str(i), length, n=n, max_tokens=3 + i)
        steps.append(desk.run())
        assert desk.scheduler.preempter.num_recomputed + desk.scheduler.preempter.num_swapped > 0
    assert steps[0] == steps[1]
