"""The block pool by hand, and under any sequence of operations."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from folovllm.core.block_pool import NULL_BLOCK, BlockPool


def free_list(pool: BlockPool) -> list[int]:
    return list(pool.get_all_free_blocks())


@pytest.mark.parametrize("block", [2, NULL_BLOCK])
def test_freeing_what_is_free_is_refused(block):
    pool = BlockPool(3)
    pool.get_new_blocks(1)
    with pytest.raises(ValueError, match=f"^block_id {block} is free already$"):
        pool.free_blocks([block])
    pool.check_invariants([[1]])


def test_a_block_freed_twice_is_refused_and_stands_once_in_the_list():
    pool = BlockPool(3)
    pool.get_new_blocks(2)
    with pytest.raises(ValueError, match="^block_id 1 is free already$"):
        pool.free_blocks([1, 1])
    assert free_list(pool) == [3, 1]
    pool.check_invariants([[2]])


@pytest.mark.parametrize("block", [2, NULL_BLOCK])
def test_sharing_what_is_free_is_refused(block):
    pool = BlockPool(3)
    pool.get_new_blocks(1)
    with pytest.raises(ValueError, match=f"^block_id {block} is free: no sequence shares it$"):
        pool.touch([block])
    pool.check_invariants([[1]])


def lose(pool: BlockPool) -> None:
    """Out of the list, and nobody's."""
    pool._unlink(3)


def lose_and_miscount(pool: BlockPool) -> None:
    pool._unlink(3)
    pool.num_free -= 1


def miscount(pool: BlockPool) -> None:
    pool.num_free += 1


def live_and_free(pool: BlockPool) -> None:
    pool._put_back(1)
    pool.num_free += 1


def one_reference_too_many(pool: BlockPool) -> None:
    pool.touch([1])


def one_reference_too_few(pool: BlockPool) -> None:
    pool._refs[2] -= 1


def freed_but_still_named(pool: BlockPool) -> None:
    pool.free_blocks([1])


def null_block_handed_out(pool: BlockPool) -> None:
    pool._refs[NULL_BLOCK] = 1


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (lose, "free list"),
        (lose_and_miscount, "free list"),
        (miscount, "free list"),
        (live_and_free, "free list"),
        (one_reference_too_many, r"block references differ.*\{1: \(1, 2\)\}"),
        (one_reference_too_few, r"block references differ.*\{2: \(2, 1\)\}"),
        (freed_but_still_named, r"block references differ.*\{1: \(1, 0\)\}"),
        (null_block_handed_out, r"block references differ.*\{0: \(0, 1\)\}"),
    ],
)
def test_the_invariants_see_every_kind_of_harm(harm, text):
    pool = BlockPool(5)
    pool.get_new_blocks(2)
    pool.touch([2])
    tables = [[1, 2], [2]]
    pool.check_invariants(tables)
    harm(pool)
    with pytest.raises(RuntimeError, match=text):
        pool.check_invariants(tables)


class PoolMachine(RuleBasedStateMachine):
    """Tables come, grow, are forked and go; the model is nothing but the tables and the order of the free ones."""

    @initialize(num_blocks=st.integers(0, 12))
    def begin(self, num_blocks):
        self.pool = BlockPool(num_blocks)
        self.tables: list[list[int]] = []
        self.free = list(range(1, num_blocks + 1))

    @rule(count=st.integers(0, 5))
    def come(self, count):
        if count <= len(self.free):
            self.tables.append(self._take(count, NULL_BLOCK))
        else:
            refused = f"^count must be at most the {len(self.free)} free blocks, got {count}$"
            with pytest.raises(ValueError, match=refused):
                self.pool.get_new_blocks(count)

    @precondition(lambda self: self.tables and self.free)
    @rule(place=st.integers(0, 99))
    def grow(self, place):
        table = self.tables[place % len(self.tables)]
        table += self._take(1, table[-1] if table else NULL_BLOCK)

    @precondition(lambda self: self.tables)
    @rule(place=st.integers(0, 99), length=st.integers(0, 5))
    def fork(self, place, length):
        self.tables.append(self.tables[place % len(self.tables)][:length])
        self.pool.touch(self.tables[-1])

    @precondition(lambda self: self.tables)
    @rule(place=st.integers(0, 99))
    def go(self, place):
        table = self.tables.pop(place % len(self.tables))
        self.pool.free_blocks(table)
        self.free += [block for block in table if not any(block in other for other in self.tables)]

    def _take(self, count, after):
        taken = self.pool.get_new_blocks(count, after)
        for block in taken:
            assert block == (after + 1 if after != NULL_BLOCK and after + 1 in self.free else self.free[0])
            self.free.remove(block)
            after = block
        return taken

    @invariant()
    def holds(self):
        if hasattr(self, "pool"):
            self.pool.check_invariants(self.tables)
            assert list(self.pool.get_all_free_blocks()) == self.free
            assert self.pool.num_free + self.pool.num_used == self.pool.num_blocks


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=100, stateful_step_count=40)
