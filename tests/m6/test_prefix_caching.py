"""Sequences that begin with what others have computed, and a cache that never gives them anything else."""

from __future__ import annotations

import pytest

from folovllm.request import SequenceStatus
from tests.m6.support import CachingDesk, compute, end, go_on, make_manager, make_seq, take_cached


def test_who_comes_next_takes_the_full_blocks() -> None:
    kv, first, second = make_manager(), make_seq([1] * 10), make_seq([1] * 10 + [2] * 5)
    assert compute(kv, first) == 0
    assert compute(kv, second) == 8  # the third block held two tokens only
    assert second.block_ids[:2] == first.block_ids[:2]
    assert second.block_ids[2] != first.block_ids[2]
    kv.check_invariants([first, second], [])


@pytest.mark.parametrize(("length", "cached"), [(7, 4), (8, 4), (9, 8), (10, 8), (12, 8), (13, 12)])
def test_a_full_hit_leaves_at_least_one_token_to_compute(length: int, cached: int) -> None:
    """The logits of the last token are drawn from, so that one is computed, and with it all of its block."""
    kv = make_manager()
    compute(kv, make_seq([1] * 20))
    assert compute(kv, make_seq([1] * length)) == cached


def test_the_last_block_of_a_full_hit_is_given_back_once_it_has_been_computed() -> None:
    kv, first, second = make_manager(), make_seq([1] * 8), make_seq([1] * 8)
    compute(kv, first)
    compute(kv, second)
    assert second.block_ids == first.block_ids
    assert (kv.pool.num_used, kv.pool.num_cached) == (2, 2)


def test_equal_prompts_of_one_step_end_up_in_the_same_blocks() -> None:
    kv, seqs = make_manager(), [make_seq([1] * 9) for _ in range(3)]
    for seq in seqs:
        assert take_cached(kv, seq) == 0
    assert kv.allocate_slots([(seq, 9) for seq in seqs]) == []
    assert kv.pool.num_used == 9
    for seq in seqs:
        seq.num_computed_tokens = 9
    changed = [kv.cache_blocks(seq) for seq in seqs]  # whose tables
    assert changed == [[], [seqs[1]], [seqs[2]]]
    assert len({tuple(seq.block_ids[:2]) for seq in seqs}) == 1
    assert len({seq.block_ids[2] for seq in seqs}) == 3
    assert kv.pool.num_used == 5
    kv.check_invariants(seqs, [])


def test_a_prompt_is_found_as_far_as_it_has_been_computed() -> None:
    kv, first = make_manager(), make_seq([1] * 16)
    compute(kv, first, upto=9)
    assert compute(kv, make_seq([1] * 16)) == 8
    go_on(kv, first)
    assert compute(kv, make_seq([1] * 17)) == 16


def test_blocks_in_the_middle_are_not_found_without_their_beginning() -> None:
    kv = make_manager()
    compute(kv, make_seq([1] * 4 + [2] * 8))
    assert compute(kv, make_seq([9] * 4 + [2] * 8)) == 0
    assert compute(kv, make_seq([2] * 12)) == 0
    assert compute(kv, make_seq([1] * 4 + [3] * 4 + [2] * 4)) == 4


def test_a_child_that_parts_in_a_block_which_can_be_found_copies_it() -> None:
    """Eight tokens are cached; the child keeps six of them and says something else."""
    kv, parent, child = make_manager(), make_seq([1] * 8), make_seq([1] * 6 + [2] * 4)
    compute(kv, parent)
    kv.fork(parent, child, 6)
    end(kv, parent)  # the child is the only one that names the block, and yet must not write to it
    shared = child.block_ids[1]
    assert kv.pool.refs(shared) == 1
    assert not kv.has_slot(child)
    pairs = kv.allocate_slots([(child, 4)])
    assert pairs == [(shared, child.block_ids[1])]
    assert child.block_ids[1] != shared
    child.num_computed_tokens = 10
    kv.cache_blocks(child)
    assert compute(kv, make_seq([1] * 9)) == 8
    assert compute(kv, make_seq([1] * 6 + [2] * 3)) == 8


def test_a_fork_knows_its_names_and_adds_its_own() -> None:
    kv, parent, child = make_manager(), make_seq([1] * 9), make_seq([1] * 9)
    compute(kv, parent, "s")
    kv.fork(parent, child, 9)
    for seq, token_id in ((parent, 5), (child, 6)):
        for _ in range(4):
            seq.add_token_id(token_id)
        assert kv.allocate_slots([(seq, 4)]) is not None
        seq.num_computed_tokens += 4
        kv.cache_blocks(seq)
    assert compute(kv, make_seq([1] * 9 + [5] * 4), "s") == 12
    assert compute(kv, make_seq([1] * 9 + [6] * 4), "s") == 12
    assert compute(kv, make_seq([1] * 9 + [6] * 4)) == 0


def test_a_block_that_was_reused_is_known_by_its_new_content_only() -> None:
    kv, first = make_manager(2), make_seq([1] * 8)
    compute(kv, first)
    end(kv, first)
    second = make_seq([2] * 8)
    assert compute(kv, second) == 0
    end(kv, second)
    assert kv.pool.num_evicted == 2
    assert compute(kv, make_seq([1] * 8)) == 0


def test_a_sequence_that_comes_back_finds_its_own_blocks() -> None:
    kv, seq = make_manager(), make_seq([1] * 10)
    compute(kv, seq)
    kv.free(seq)  # preempted, to be recomputed
    assert (seq.block_ids, seq.num_computed_tokens) == ([], 0)
    assert compute(kv, seq) == 8


def test_a_sequence_that_comes_back_from_the_swap_space_finds_its_old_blocks() -> None:
    kv, seq = make_manager(num_swap_blocks=8), make_seq([1] * 9)
    compute(kv, seq)
    old = list(seq.block_ids)
    assert kv.swap_out([seq]) is not None
    assert kv.pool.num_cached == 2  # what it left behind can still be found
    assert kv.swap_in([seq]) is not None
    assert set(seq.block_ids).isdisjoint(old[:2])
    assert kv.cache_blocks(seq)
    assert seq.block_ids[:2] == old[:2]
    kv.check_invariants([seq], [])


@pytest.mark.parametrize("computed", [2, 4, 6, 9], ids=lambda n: f"{n} computed")
@pytest.mark.parametrize("moved", [False, True], ids=["stays", "is swapped meanwhile"])
def test_what_was_half_computed_at_a_reset_is_not_found_later(computed: int, moved: bool) -> None:
    """Nor what comes behind it: its keys and values are made of the old ones."""
    kv, seq = make_manager(num_swap_blocks=8), make_seq([1] * 16)
    compute(kv, seq, upto=computed)
    if moved:
        kv.swap_out([seq])
    kv.reset_prefix_cache()
    if moved:
        kv.swap_in([seq])
    go_on(kv, seq)
    assert compute(kv, make_seq([1] * 16)) == 0
    kv.free(seq)  # computed once more, it is as new as any
    assert compute(kv, seq) == 12


def test_a_child_of_what_is_older_than_a_reset_is_as_old() -> None:
    kv, parent, child = make_manager(), make_seq([1] * 6), make_seq([1] * 9)
    compute(kv, parent)
    kv.reset_prefix_cache()
    kv.fork(parent, child, 6)
    go_on(kv, child)
    assert compute(kv, make_seq([1] * 9)) == 0


def test_nothing_is_left_of_sequences_that_have_ended() -> None:
    desk = CachingDesk(12, num_swap_blocks=4, mode="swap", seed=1)
    for i in range(6):
        desk.add(str(i), [1] * 6, n=1 + i % 2, max_tokens=9, salt="a" if i % 3 else None)
    desk.step()
    desk.reset()
    desk.abort("3")
    desk.run()
    desk.add("beams", [1] * 6, beams=3, max_tokens=6)
    desk.run()
    kv = desk.kv
    assert (kv._chains, kv._num_cached, kv._outdated) == ({}, {}, set())


def test_a_request_that_was_preempted_is_counted_once() -> None:
    """Two of up to 8 blocks each in a cache of 9: one gives way, and comes back."""
    desk = CachingDesk(9, max_num_seqs=2, mode="recompute")
    desk.add("a", [1] * 12, max_tokens=20)
    desk.add("b", [2] * 12, max_tokens=20)
    desk.run()
    assert desk.scheduler.preempter.num_recomputed > 0
    assert (desk.cached("a"), desk.cached("b")) == (0, 0)
    assert (desk.kv.num_queries, desk.kv.num_hits) == (24, 0)


def test_a_preempted_sequence_computes_no_more_than_was_lost() -> None:
    """Its blocks go back into a pool in which somebody needs just one of them."""
    desk = CachingDesk(6, max_num_seqs=2, mode="recompute")
    desk.add("a", [1] * 11, max_tokens=10)
    desk.add("b", [2] * 11, max_tokens=10)
    while desk.status("b")[0] is not SequenceStatus.WAITING or not desk.scheduler.preempter.num_recomputed:
        desk.step()
    had = desk.requests["b"].get_seqs()[0].get_len()
    while desk.status("a")[0] is SequenceStatus.RUNNING:
        desk.step()
    evicted = desk.kv.pool.num_evicted
    assert 0 < evicted < 3
    assert desk.step()["b"] == had - 4 * (had // 4 - evicted)
    desk.run()
