"""The pool with its loops in one piece is the core's pool: the same calls, the same blocks, the same order."""

from __future__ import annotations

import random

import pytest

from folovllm.core.cached_block_pool import CachedBlockPool
from folovllm.request import SequenceData
from folovllm.simulator.load import Job
from folovllm.simulator.named_pool import NamedBlockPool, NamedBlocks


def state(pool: CachedBlockPool) -> tuple[object, ...]:
    return (list(pool.get_all_free_blocks()), pool.all_refs(), pool.num_free, pool.num_shared, pool.num_evicted,
            pool._by_hash, pool._cached)  # fmt: skip


def find_one_by_one(pool: CachedBlockPool, names: NamedBlocks, most: int) -> list[int]:
    """As PrefixCachingManager does."""
    found: list[int] = []
    for place in range(most):
        block_id = pool.get_cached_block(names.block_hash(place), found[-1] if found else 0, (), None)
        if block_id is None:
            break
        found.append(block_id)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_random_requests_leave_both_pools_alike(seed: int):
    rng, core, fused = random.Random(seed), CachedBlockPool(40), NamedBlockPool(40)
    running: list[tuple[NamedBlocks, list[int]]] = []
    for number in range(200):
        if running and rng.random() < 0.5:
            _, table = running.pop(rng.randrange(len(running)))
            for pool in (core, fused):
                pool.free_blocks(reversed(table))
        group, chat = rng.choice([None, "a", "b"]), rng.choice([None, None, "c"])
        job = Job(0.0, 48, 1, group, 4 * rng.randrange(5) if group else 0, chat)
        names = NamedBlocks(SequenceData([]), str(number), job, 4)
        most = rng.randint(0, 12)
        table = fused.find(names, most)
        assert table == find_one_by_one(core, names, most)
        num_found, count = len(table), rng.randint(0, 6)
        if count + num_found > core.num_free:
            continue
        tables = []
        for pool in (core, fused):
            pool.touch(table)
            grown = table + pool.get_new_blocks(count, after=table[-1] if table else 0)
            pool.cache_full_blocks(names, grown, num_found, rng_of(seed, number).randint(num_found, len(grown)))
            tables.append(grown)
        assert tables[0] == tables[1]
        running.append((names, tables[0]))
        assert state(core) == state(fused)
    assert core.num_evicted > 0


def rng_of(seed: int, number: int) -> random.Random:
    return random.Random(f"{seed} {number}")


def test_a_chat_behind_another_prefix_is_not_found():
    """The second block is called the same, and stands behind another one."""
    pool = NamedBlockPool(9)
    here, there = (NamedBlocks(SequenceData([]), "7", Job(0.0, 12, 1, group, 4, "x"), 4) for group in "ab")
    pool.cache_full_blocks(here, pool.get_new_blocks(2), 0, 2)
    pool.cache_full_blocks(there, pool.get_new_blocks(1), 0, 1)
    assert pool.find(here, 2) == [1, 2]
    assert pool.find(there, 2) == [3]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda pool: pool.get_new_blocks(10), "count must be at most the 9 free blocks, got 10"),
        (lambda pool: pool.free_blocks([1]), "block_id 1 is free already"),
        (lambda pool: pool.touch([1]), "block_id 1 is free"),
    ],
)
def test_what_the_core_refuses_is_refused(act, message: str):
    with pytest.raises(ValueError, match=message):
        act(NamedBlockPool(9))
