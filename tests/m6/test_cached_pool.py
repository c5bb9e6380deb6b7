"""A pool that remembers: what is found, what is evicted first, and that what can be found is not written to."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from folovllm.core.block_pool import NULL_BLOCK, BlockPool


def keep_chain(pool: BlockPool, block_ids: list[int], label: str) -> None:
    """Name these blocks, in use, as one chain of blocks of a single token each."""
    parent = NULL_BLOCK
    for place, block_id in enumerate(block_ids):
        assert pool.cache_block(block_id, f"{label}{place}".encode(), parent, [place], None)
        parent = block_id


def find_chain(pool: BlockPool, label: str, most: int = 9) -> list[int]:
    found: list[int] = []
    for place in range(most):
        block_id = pool.get_cached_block(f"{label}{place}".encode(), found[-1] if found else NULL_BLOCK, [place], None)
        if block_id is None:
            break
        found.append(block_id)
    return found


def pool_with(*chains: str, num_blocks: int = 6, length: int = 2) -> BlockPool:
    """Cached chains, given up in this order: a is in blocks 1 and 2, b in 3 and 4."""
    pool = BlockPool(num_blocks, enable_caching=True)
    tables = {label: pool.get_new_blocks(length) for label in chains}
    for label, table in tables.items():
        keep_chain(pool, table, label)
    for table in tables.values():
        pool.free_blocks(reversed(table))
    return pool


def test_a_block_is_found_while_it_is_used_and_after() -> None:
    pool = BlockPool(3, enable_caching=True)
    (block_id,) = pool.get_new_blocks(1)
    assert pool.get_cached_block(b"x", NULL_BLOCK, [1], None) is None
    pool.cache_block(block_id, b"x", NULL_BLOCK, [1], None)
    assert pool.get_cached_block(b"x", NULL_BLOCK, [1], None) == block_id
    pool.free_blocks([block_id])
    assert pool.get_cached_block(b"x", NULL_BLOCK, [1], None) == block_id
    assert (pool.num_free, pool.num_used, pool.num_cached) == (3, 0, 1)


def test_blocks_that_hold_nothing_are_handed_out_first_and_the_longest_unused_of_the_others_next() -> None:
    pool = pool_with("a", "b")
    assert list(pool.get_all_free_blocks()) == [5, 6, 2, 1, 4, 3]
    assert pool.get_new_blocks(2) == [5, 6]
    assert (find_chain(pool, "a"), find_chain(pool, "b")) == ([1, 2], [3, 4])


def test_a_chain_loses_its_end_before_its_beginning() -> None:
    pool = pool_with("a", num_blocks=3, length=3)
    left = []
    while pool.num_free:
        pool.get_new_blocks(1)
        left.append(len(find_chain(pool, "a")))
    assert left == [2, 1, 0]
    assert pool.num_evicted == 3


def test_what_was_used_again_is_evicted_last() -> None:
    pool = pool_with("a", "b", num_blocks=4)
    pool.touch(find_chain(pool, "a"))
    pool.free_blocks(reversed([1, 2]))
    assert list(pool.get_all_free_blocks()) == [4, 3, 2, 1]
    pool.get_new_blocks(2)
    assert (find_chain(pool, "a"), find_chain(pool, "b")) == ([1, 2], [])


def test_a_found_block_leaves_the_free_list() -> None:
    pool = pool_with("a", "b")
    pool.touch([1, 2])
    assert (pool.num_free, pool.num_used) == (4, 2)
    assert list(pool.get_all_free_blocks()) == [5, 6, 4, 3]
    pool.touch([1])
    assert (pool.refs(1), pool.refs(2)) == (2, 1)
    pool.check_invariants([[1, 2], [1]])


def test_the_neighbour_is_taken_only_when_nothing_is_lost() -> None:
    pool = BlockPool(6, enable_caching=True)
    used, cached, _ = (pool.get_new_blocks(1)[0] for _ in range(3))
    keep_chain(pool, [cached], "a")
    pool.free_blocks([cached])  # block 2 lies next to block 1, but it is worth something
    assert pool.get_new_blocks(1, after=used) == [4]
    assert find_chain(pool, "a") == [2]
    pool.free_blocks([3])
    assert pool.get_new_blocks(1, after=2) == [3]  # holds nothing


def test_where_all_are_cached_the_oldest_goes_and_not_the_neighbour() -> None:
    pool = pool_with("a", "b", "c")  # the free list is 2 1 4 3 6 5
    pool.touch([1, 2])
    assert pool.get_new_blocks(1, after=2) == [4]  # 3, the neighbour, is b's beginning
    assert find_chain(pool, "b") == [3]


def test_a_block_that_nobody_named_goes_back_to_the_front() -> None:
    pool = pool_with("a", "b", num_blocks=6)
    table = pool.get_new_blocks(2)
    pool.free_blocks(reversed(table))
    assert list(pool.get_all_free_blocks())[:2] == table
    assert pool.num_cached == 4


def test_only_what_was_asked_for_is_found() -> None:
    """A name is believed only if everything behind it agrees."""
    pool = BlockPool(3, enable_caching=True)
    first, second, third = pool.get_new_blocks(3)
    keep_chain(pool, [first], "a")
    assert pool.cache_block(second, b"n", first, [7, 8], "me")
    assert pool.get_cached_block(b"n", first, [7, 8], "me") == second
    for name, parent, token_ids, salt in (
        (b"m", first, [7, 8], "me"),
        (b"n", third, [7, 8], "me"),
        (b"n", NULL_BLOCK, [7, 8], "me"),
        (b"n", first, [8, 7], "me"),
        (b"n", first, [7], "me"),
        (b"n", first, [7, 8], "you"),
        (b"n", first, [7, 8], None),
    ):
        assert pool.get_cached_block(name, parent, token_ids, salt) is None


def test_a_name_belongs_to_the_first_content_that_had_it() -> None:
    pool = BlockPool(3, enable_caching=True)
    first, second, child = pool.get_new_blocks(3)
    assert pool.cache_block(first, b"n", NULL_BLOCK, [1], None)
    assert not pool.cache_block(second, b"n", NULL_BLOCK, [2], None)
    assert pool.get_cached_block(b"n", NULL_BLOCK, [1], None) == first
    assert pool.get_cached_block(b"n", NULL_BLOCK, [2], None) is None
    assert not pool.cache_block(child, b"c", second, [3], None)  # nobody could find its parent
    pool.free_blocks([child, second, first])
    assert pool.num_cached == 1
    pool.get_new_blocks(3)
    pool.check_invariants([[1], [2], [3]])
    assert pool.cache_block(second, b"n", NULL_BLOCK, [2], None)  # free again


def test_a_block_that_can_be_found_is_not_written_to_by_anybody() -> None:
    pool = BlockPool(3, enable_caching=True)
    (block_id,) = pool.get_new_blocks(1)
    assert pool.may_write(block_id)
    assert pool.copies_needed(block_id, 1) == 0
    keep_chain(pool, [block_id], "a")
    assert not pool.may_write(block_id)
    assert pool.copies_needed(block_id, 1) == 1
    pool.touch([block_id])
    assert pool.copies_needed(block_id, 2) == 2  # without its name the last of them could keep it
    pool.reset_prefix_cache()
    assert pool.copies_needed(block_id, 2) == 1


def test_forgetting_takes_nothing_from_who_has_it() -> None:
    pool = pool_with("a", "b")
    pool.touch([1, 2])
    pool.reset_prefix_cache()
    assert (pool.num_cached, pool.num_used, pool.refs(1)) == (0, 2, 1)
    assert find_chain(pool, "a") == find_chain(pool, "b") == []
    pool.check_invariants([[1, 2]])
    pool.free_blocks([2, 1])
    assert sorted(pool.get_new_blocks(6)) == [1, 2, 3, 4, 5, 6]
    assert pool.num_evicted == 0


def test_invariants_know_a_child_that_would_outlive_its_parent() -> None:
    pool = BlockPool(2, enable_caching=True)
    table = pool.get_new_blocks(2)
    keep_chain(pool, table, "a")
    pool.free_blocks(table)  # its beginning first
    with pytest.raises(RuntimeError, match="evicted after its parent"):
        pool.check_invariants([])


@settings(max_examples=60)
@given(st.integers(1, 12), st.integers(0, 2**32))
def test_whatever_is_taken_found_and_given_back(num_blocks: int, seed: int) -> None:
    """Nodes of a tree, each with its content; a model beside the pool knows what each block was last written for."""
    rng, pool = random.Random(seed), BlockPool(num_blocks, enable_caching=True)
    tables: list[list[int]] = []
    contents: dict[int, tuple[int, ...]] = {}  # block -> the whole path from the root to it
    for _ in range(60):
        if tables and rng.random() < 0.4:
            pool.free_blocks(reversed(tables.pop(rng.randrange(len(tables)))))
        else:
            table, path = list[int](), ()
            while len(path) < 5:
                path = (*path, rng.randrange(2))
                name = bytes([sum(path) % 3])  # many paths have the same
                found = pool.get_cached_block(name, table[-1] if table else NULL_BLOCK, path[-1:], None)
                if found is not None:
                    assert contents[found] == path
                    pool.touch([found])
                elif pool.num_free:
                    (found,) = pool.get_new_blocks(1, after=table[-1] if table else NULL_BLOCK)
                    contents[found] = path
                    pool.cache_block(found, name, table[-1] if table else NULL_BLOCK, path[-1:], None)
                else:
                    break
                table.append(found)
            tables.append(table)
        pool.check_invariants(tables)
