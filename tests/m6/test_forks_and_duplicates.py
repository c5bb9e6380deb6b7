"""Forks of a sequence whose block gives way to an equal one: who uses a block that can be found uses all before it."""

from __future__ import annotations

import random

import pytest

from folovllm.request import SequenceStatus
from tests.m6.support import CachingDesk, compute, end, make_manager, make_seq, take_cached


def test_forks_follow_when_a_block_gives_way_to_one_that_is_cached() -> None:
    """`leader` and `other` begin alike in one step, and `leader` has forked by the time that it is known. Its second
    block is then found behind the first one of `other`, so whoever uses it must keep that one, too."""
    kv, other = make_manager(8), make_seq([1] * 4 + [2], "other")
    leader, child = make_seq([1] * 4 + [3] * 5), make_seq([1] * 4 + [3] * 5)
    for seq in (other, leader):
        assert take_cached(kv, seq) == 0
        assert kv.allocate_slots([(seq, seq.get_len())]) == []
        seq.num_computed_tokens = seq.get_len()
    kv.fork(leader, child, 9)
    for seq in (other, leader, child):
        seq.transition(SequenceStatus.RUNNING)
    assert [kv.cache_blocks(seq) for seq in (other, leader)] == [[], [leader, child]]
    assert child.block_ids == leader.block_ids
    assert child.block_ids[0] == other.block_ids[0]
    kv.check_invariants([other, leader, child], [])
    end(kv, other)
    end(kv, leader)
    kv.check_invariants([child], [])
    filler = make_seq([4] * 20, "filler")  # takes every block that is free
    assert compute(kv, filler) == 0
    assert kv.pool.num_free == 0
    kv.check_invariants([child, filler], [])


@pytest.mark.parametrize("seed", range(12))
def test_who_uses_a_block_that_can_be_found_uses_all_before_it(seed: int) -> None:
    """Requests of several sequences that begin alike and come together. The pool's own check says it of every table, at
    every step (BlockPool.check_invariants)."""
    rng = random.Random(seed)
    desk = CachingDesk(
        rng.choice([12, 20, 40]), rng.choice([1, 2, 4]), budget=rng.choice([6, 20, 64]), threshold=rng.choice([0, 3])
    )
    prefix = [1] * rng.choice([4, 8])
    for i in range(12):
        prompt = [*prefix, *(rng.choice([2, 3]) for _ in range(rng.randrange(1, 6)))]
        desk.add(str(i), prompt, n=rng.randrange(1, 4), max_tokens=rng.randrange(1, 9))
        if rng.random() < 0.4:
            desk.step()
    desk.run()
