"""Several sequences of one prompt that comes in by chunks: one computes it, its siblings stand aside until it is there.

Blocks of 4 tokens, a budget of 8 tokens in a step, and no model.
"""

from __future__ import annotations

import pytest

from folovllm.request import SequenceStatus
from tests.m5.support import ChunkDesk, preempted_on_the_way

RUNNING, WAITING, SWAPPED = SequenceStatus.RUNNING, SequenceStatus.WAITING, SequenceStatus.SWAPPED


def test_siblings_stand_aside_while_the_first_is_prefilled():
    desk = ChunkDesk()
    desk.add("r", 18, n=3, max_tokens=2)
    for _ in range(2):
        assert desk.step() == {"r": 8}
        assert desk.status("r") == [RUNNING, WAITING, WAITING]
        assert desk.where() == (["r"], [], [])  # nobody behind it has to wait for them
    assert desk.step() == {"r": 2}
    assert desk.status("r") == [RUNNING] * 3
    assert [seq.get_output_len() for seq in desk.requests["r"].get_seqs()] == [1] * 3
    assert desk.run() == [{"r": 3}]


def test_siblings_share_all_blocks_of_the_prompt():
    desk = ChunkDesk()
    request = desk.add("r", 18, n=3, max_tokens=2)
    desk.step()
    desk.step()
    output = desk.schedule()
    assert [(parent.index, child.index) for parent, child in output.forks] == [(0, 1), (0, 2)]
    first, *others = [seq.block_ids for seq in request.get_seqs()]
    assert len(first) == 5
    assert others == [first, first]
    desk.update(output)
    desk.run()


def test_siblings_fork_where_the_last_chunk_is_one_token():
    desk = ChunkDesk()
    desk.add("r", 9, n=3, max_tokens=2)
    assert desk.run() == [{"r": 8}, {"r": 1}, {"r": 3}]


def test_others_join_while_siblings_stand_aside():
    desk = ChunkDesk(threshold=4)
    desk.add("r", 10, n=3, max_tokens=2)
    desk.add("late", 2, max_tokens=3)
    assert desk.run() == [{"r": 4, "late": 2}, {"r": 4, "late": 1}, {"r": 2, "late": 1}, {"r": 3}]


def test_siblings_without_a_row_get_in_line_when_the_prompt_is_there():
    desk = ChunkDesk(max_num_seqs=2)
    request = desk.add("r", 10, n=4, max_tokens=2)
    desk.add("late", 1, max_tokens=1)
    assert desk.step() == {"r": 8}
    assert desk.where() == (["r"], [], ["late"])
    assert desk.step() == {"r": 2}
    assert desk.status("r") == [RUNNING] * 2 + [WAITING] * 2
    assert desk.where() == (["r"], [], ["r", "late"])  # in its old place
    steps = desk.run()
    assert steps[0] == {"r": 2}
    assert next(i for i, step in enumerate(steps) if "late" in step) == len(steps) - 1
    assert [seq.get_output_len() for seq in request.get_seqs()] == [2] * 4


def test_rows_that_others_took_meanwhile_are_not_there_for_siblings():
    desk = ChunkDesk(max_num_seqs=3, threshold=4)
    desk.add("r", 10, n=3, max_tokens=3)
    desk.add("late", 2, max_tokens=9)
    assert desk.step() == {"r": 4, "late": 2}
    assert desk.step() == {"r": 4, "late": 1}
    assert desk.step() == {"r": 2, "late": 1}
    assert desk.status("r") == [RUNNING, RUNNING, WAITING]
    desk.run()


def test_the_oldest_of_two_prompts_that_end_in_one_step_forks_first():
    desk = ChunkDesk(budget=12, max_num_seqs=4, threshold=5, partial=2)
    desk.add("r", 8, n=3, max_tokens=3)
    desk.add("s", 8, n=3, max_tokens=3)
    assert desk.step() == {"r": 5, "s": 5}
    assert desk.step() == {"r": 3, "s": 3}
    assert desk.status("r") == [RUNNING, RUNNING, RUNNING]
    assert desk.status("s") == [RUNNING, WAITING, WAITING]
    desk.run()


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_siblings_wait_for_a_first_one_that_was_preempted_on_its_way(mode):
    desk = preempted_on_the_way(mode, n=3, max_tokens=1)
    assert desk.status("long") == [SWAPPED if mode == "swap" else WAITING, WAITING, WAITING]
    assert desk.where() == (["a"], ["long"] if mode == "swap" else [], ["long"])
    desk.add("late", 1, max_tokens=1)
    steps = desk.run()
    prompt = [step["long"] for step in steps if "long" in step]
    assert prompt == ([3] if mode == "swap" else [4, 4, 4, 3])  # once for all of them
    assert [seq.get_output_len() for seq in desk.requests["long"].get_seqs()] == [1] * 3


def test_siblings_of_a_prompt_that_comes_back_from_the_swap_space_take_their_rows():
    """Four rows are all there are: the last chunk of 3 leaves a token of the budget, and no row for anybody else."""
    desk = preempted_on_the_way("swap", n=4, max_tokens=1)
    desk.abort("a")
    desk.add("late", 1, max_tokens=1)
    assert desk.step() == {"long": 3}
    assert desk.run() == [{"late": 1}]


def test_siblings_stand_aside_again_when_their_prompt_comes_back_from_the_swap_space():
    desk = ChunkDesk(6, num_swap_blocks=8, budget=4, threshold=2, mode="swap")
    desk.add("a", 4, max_tokens=13)
    desk.step()
    desk.step()
    seq = desk.add("long", 15, n=2, max_tokens=1).get_seqs()[0]
    while not desk.scheduler.preempter.num_swapped:
        desk.step()
    assert (seq.status, seq.num_computed_tokens) == (SWAPPED, 12)
    desk.abort("a")
    desk.add("late", 1, max_tokens=1)
    assert desk.step() == {"long": 2, "late": 1}  # nobody behind them has to wait
    assert desk.run() == [{"long": 1}]


def test_an_interrupt_on_the_way_begins_the_prompt_anew():
    desk = ChunkDesk()
    desk.add("r", 18, n=3, max_tokens=2)
    desk.step()
    desk.interrupted_step()
    assert desk.status("r") == [WAITING] * 3
    assert desk.run() == [{"r": 8}, {"r": 8}, {"r": 2}, {"r": 3}]


def test_beams_wait_for_their_prompt_and_claim_their_rows_meanwhile():
    desk = ChunkDesk(max_num_seqs=4, seed=1, threshold=4)
    desk.add("beams", [1] * 10, beams=3, max_tokens=3)
    for name in "ab":
        desk.add(name, 1, max_tokens=1)
    assert desk.step() == {"beams": 4, "a": 1}  # one row is left beside three beams
    assert desk.step() == {"beams": 4, "b": 1}
    assert desk.step() == {"beams": 2}
    assert desk.step() == {"beams": 3}
    desk.run()


def test_the_prompt_of_beams_is_cut_where_the_budget_ends_and_nowhere_else():
    desk = ChunkDesk(seed=1)
    desk.add("beams", [1] * 16, beams=3, max_tokens=3)
    assert [desk.step() for _ in range(3)] == [{"beams": 8}, {"beams": 8}, {"beams": 3}]
    desk.run()


def test_recomputed_beams_catch_up_in_chunks_and_branch_together_again():
    """12 tokens each, of which two full blocks are the prompt's."""
    desk = ChunkDesk(11, budget=4, max_num_seqs=4, mode="recompute", seed=17)
    desk.add("a", 4, max_tokens=24)
    request = desk.add("beams", [1] * 10, beams=3, max_tokens=9)
    while not desk.scheduler.preempter.num_recomputed:
        desk.step()
    lengths = {seq.get_len() for seq in request.get_seqs()}
    assert len(lengths) == 1
    longest = lengths.pop()
    while any(seq.num_computed_tokens < longest - 1 for seq in request.get_seqs()):
        desk.step()
        assert {seq.get_len() for seq in request.get_seqs()} == {longest}  # nobody draws before all are there
    assert desk.step()["beams"] == 3
    desk.run()
