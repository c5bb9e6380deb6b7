"""The scheduler with several sequences of one request: forks share, beams stay together, an abort frees a block once.

Blocks of 4 tokens, and no model.
"""

from __future__ import annotations

import pytest

from folovllm.request import Sequence, SequenceStatus
from tests.m3.support import PagedDesk

RUNNING, WAITING, SWAPPED = SequenceStatus.RUNNING, SequenceStatus.WAITING, SequenceStatus.SWAPPED
ABORTED = SequenceStatus.FINISHED_ABORTED


def test_the_prompt_of_n_is_computed_once():
    desk = PagedDesk(8)
    desk.add("r", 5, n=3, max_tokens=3)
    output = desk.schedule()
    assert [(seq.seq_id, num) for seq, num in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True)] == [
        ("r-0", 5)
    ]
    assert [(parent.seq_id, child.seq_id) for parent, child in output.forks] == [("r-0", "r-1"), ("r-0", "r-2")]
    assert desk.kv.pool.num_used == 2
    assert len(desk.update(output)) == 3
    assert desk.run() == [{"r": 3}] * 2


def test_the_second_step_of_a_fork_copies_its_last_block():
    desk = PagedDesk(8)
    request = desk.add("r", 5, n=3, max_tokens=3)
    desk.step()
    output = desk.schedule()
    assert output.blocks_to_copy == [(2, 3), (2, 4)]
    assert [seq.block_ids for seq in request.get_seqs()] == [[1, 3], [1, 4], [1, 2]]
    desk.update(output)
    desk.run()


def test_forks_fill_the_rows_that_are_left_and_the_others_follow_from_a_sibling():
    desk = PagedDesk(20, max_num_seqs=3)
    request = desk.add("r", 6, n=5, max_tokens=3)
    assert desk.step() == {"r": 6}
    assert desk.status("r") == [RUNNING] * 3 + [WAITING] * 2
    assert desk.run() == [{"r": 3}, {"r": 3}, {"r": 6}, {"r": 2}, {"r": 2}]  # nobody runs who could be asked: again
    assert [seq.get_output_len() for seq in request.get_seqs()] == [3] * 5


def test_a_sibling_that_joins_later_computes_one_token_of_the_prompt():
    desk = PagedDesk(20, max_num_seqs=3)
    desk.add("a", 4, max_tokens=2)
    desk.add("r", 6, n=3, max_tokens=5)
    assert desk.step() == {"a": 4, "r": 6}
    assert desk.step() == {"a": 1, "r": 2}
    assert desk.step() == {"r": 3}  # two tokens, and the last one of the prompt: that draws
    desk.run()


def test_a_copy_of_a_block_that_is_being_copied():
    """r-2 joins in the step in which r-0 leaves the block that it shares with r-1: all three read the same prompt."""
    desk = PagedDesk(20, max_num_seqs=3)
    desk.add("a", 4, max_tokens=1)
    request = desk.add("r", 6, n=3, max_tokens=5)
    desk.step()
    output = desk.schedule()
    (source,) = {of for of, _ in output.blocks_to_copy}
    assert len(output.blocks_to_copy) == 2
    assert source == request.get_seqs()[1].block_ids[1]
    desk.update(output)
    desk.run()


def test_beams_go_and_come_back_all_or_none():
    for mode in ("swap", "recompute"):
        desk = PagedDesk(7, num_swap_blocks=20, mode=mode, seed=3)
        desk.add("a", 4, max_tokens=24)
        desk.add("beams", [1] * 4, beams=3, max_tokens=7)
        gone = 0
        while desk.scheduler.has_unfinished_requests():
            output = desk.schedule()
            live = [seq for seq in desk.requests["beams"].get_seqs() if not seq.is_finished()]
            drawing = [
                seq
                for seq, num_tokens in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True)
                if seq in live and seq.num_computed_tokens + num_tokens == seq.get_len()
            ]
            assert drawing in ([], live)
            gone += bool(live) and desk.requests["beams"].get_seqs(RUNNING) == []
            if mode == "swap":
                assert len({seq.status for seq in live}) <= 1
            desk.update(output)
            desk.scheduler.check_invariants()
        assert gone
        desk.assert_empty()


def test_beams_claim_the_rows_of_their_full_width():
    desk = PagedDesk(30, max_num_seqs=4, seed=1)
    desk.add("beams", [1] * 3, beams=3, max_tokens=4)
    desk.add("a", 3, max_tokens=2)
    desk.add("b", 3, max_tokens=2)
    assert desk.step() == {"beams": 3, "a": 3}  # one beam runs as yet, and two rows are kept for the others
    desk.run()


def seqs_in(desk: PagedDesk, status: SequenceStatus) -> list[Sequence]:
    return [seq for request in desk.requests.values() for seq in request.get_seqs(status)]


@pytest.mark.parametrize("status", [WAITING, RUNNING, SWAPPED])
def test_an_abort_frees_what_a_sequence_holds_wherever_it_is(status):
    desk = PagedDesk(4, num_swap_blocks=1, mode="swap")
    for name in "abcd":
        desk.add(name, 4, max_tokens=9)
    desk.step()
    desk.step()
    seq = seqs_in(desk, status)[0]
    held = len(seq.block_ids)
    pool = desk.kv.swap_pool if status is SWAPPED else desk.kv.pool
    free = pool.num_free
    desk.abort(seq.request_id)
    desk.abort(seq.request_id)
    assert (seq.status, seq.block_ids, pool.num_free - free) == (ABORTED, [], held)
    desk.scheduler.check_invariants()
    desk.run()


def test_an_abort_between_schedule_and_update_frees_once():
    desk = PagedDesk(8)
    desk.add("a", 4)
    desk.add("b", 4)
    output = desk.schedule()
    desk.abort("a")
    desk.abort("a")
    assert [seq.request_id for seq in desk.update(output)] == ["b"]
    desk.scheduler.check_invariants()
    assert desk.kv.pool.num_used == 1
    assert desk.requests["a"].get_seqs()[0].num_computed_tokens == 0
    desk.run()


def test_an_abort_while_the_prompt_of_a_fork_is_computed_frees_once():
    desk = PagedDesk(8)
    request = desk.add("r", 6, n=3)
    output = desk.schedule()
    assert len(output.forks) == 2
    desk.abort("r")
    assert desk.update(output) == []
    assert [seq.get_output_len() for seq in request.get_seqs()] == [0] * 3
    desk.assert_empty()


def test_a_parent_that_ends_leaves_its_blocks_to_its_children():
    desk = PagedDesk(8)
    request = desk.add("r", 6, n=3, max_tokens=4)
    desk.step()
    desk.scheduler.finish(request, request.get_seqs()[0], SequenceStatus.FINISHED_STOPPED)
    desk.scheduler.check_invariants()
    assert desk.kv.pool.num_used == 2
    assert desk.run()[0] == {"r": 2}
