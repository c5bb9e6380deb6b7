import pytest

from folovllm.core.block_hash import HashChain
from folovllm.core.block_pool import BlockPool
from folovllm.core.group_tables import _name, _parent, cache_group
from folovllm.request import SequenceData
from lab_judge import expect, invariant


def chain_of(tokens, salt=None):
    return HashChain(SequenceData(list(tokens)), 2, salt)


@invariant(1)
def test_the_first_groups_block_is_called_by_its_hash():
    chain = chain_of([5, 6, 7, 8])
    expect([_name(chain, 0, place) for place in (0, 1)], [chain.block_hash(0), chain.block_hash(1)])


@invariant(1)
@pytest.mark.parametrize(("group", "behind"), [(1, b"\x00\x01"), (3, b"\x00\x03"), (258, b"\x01\x02")])
def test_further_groups_have_their_number_behind_it(group, behind):
    chain = chain_of([5, 6])
    expect(_name(chain, group, 0).removeprefix(chain.block_hash(0)), behind)


@invariant(2)
def test_a_further_groups_block_hangs_on_the_first_groups():
    tables = [[4, 9], [5, 7], [6, 8]]
    expect([_parent(tables, group, 1) for group in (0, 1, 2)], [0, 9, 9])


@invariant(3)
def test_two_groups_are_cached_beside_each_other():
    pool, chain = BlockPool(8, enable_caching=True), chain_of([5, 6, 7, 8])
    tables = [pool.get_new_blocks(2), pool.get_new_blocks(2)]
    for group in (0, 1):
        cache_group(pool, chain, tables, group, [0, 1])
    expect(pool.num_cached, 4)
    expect(pool.get_cached_block(_name(chain, 1, 1), tables[0][1], [7, 8], None), tables[1][1])


@invariant(3)
def test_another_salt_finds_nothing():
    pool = BlockPool(8, enable_caching=True)
    for salt in ("a", "b"):
        cache_group(pool, chain_of([5, 6], salt), [pool.get_new_blocks(1)], 0, [0])
    expect(pool.num_cached, 2)


@invariant(3)
def test_only_the_places_that_are_named():
    pool, chain = BlockPool(8, enable_caching=True), chain_of([5, 6, 7, 8])
    table = pool.get_new_blocks(2)
    cache_group(pool, chain, [table], 0, iter([1]))
    expect([pool.is_cached(block) for block in table], [False, True])


@invariant(3)
def test_with_their_salt_they_are_found():
    pool, chain = BlockPool(8, enable_caching=True), chain_of([5, 6], salt="a")
    (block,) = pool.get_new_blocks(1)
    cache_group(pool, chain, [[block]], 0, [0])
    expect(pool.get_cached_block(chain.block_hash(0), 0, [5, 6], "a"), block)


@invariant(4)
def test_a_place_that_the_window_has_left_is_passed_over():
    pool, chain = BlockPool(8, enable_caching=True), chain_of([5, 6, 7, 8])
    (block,) = pool.get_new_blocks(1)
    cache_group(pool, chain, [[0, block]], 0, [0, 1])
    expect((pool.is_cached(0), pool.is_cached(block)), (False, True))


@invariant(5)
def test_equal_tokens_are_kept_once():
    pool, chain = BlockPool(8, enable_caching=True), chain_of([5, 6])
    first, second = pool.get_new_blocks(1), pool.get_new_blocks(1)
    cache_group(pool, chain, [first], 0, [0])
    cache_group(pool, chain, [second], 0, [0])
    expect((second == first, pool.refs(first[0]), pool.num_used), (True, 2, 1))


@invariant(5)
def test_the_block_that_goes_is_the_one_at_that_place():
    pool, chain = BlockPool(8, enable_caching=True), chain_of([5, 6, 7, 8])
    first, second = pool.get_new_blocks(2), pool.get_new_blocks(2)
    own = second[1]
    cache_group(pool, chain, [first], 0, [0, 1])
    cache_group(pool, chain, [[first[0], own]], 0, [1])
    expect((pool.refs(own), pool.refs(first[0]), pool.refs(first[1])), (0, 1, 2))


@invariant(5)
def test_what_the_table_has_stays_as_it_is():
    pool, chain = BlockPool(8, enable_caching=True), chain_of([5, 6])
    table = pool.get_new_blocks(1)
    for _ in range(3):
        cache_group(pool, chain, [table], 0, [0])
    expect(pool.refs(table[0]), 1)


@invariant(5)
def test_it_may_be_free():
    pool, chain = BlockPool(8, enable_caching=True), chain_of([5, 6])
    first, second = pool.get_new_blocks(1), pool.get_new_blocks(1)
    cache_group(pool, chain, [first], 0, [0])
    pool.free_blocks(first)
    cache_group(pool, chain, [second], 0, [0])
    expect((second == first, pool.refs(first[0]), pool.num_used), (True, 1, 1))
    expect(first[0] in list(pool.get_all_free_blocks()), False)


@invariant(5)
def test_only_that_groups_table_changes():
    pool, chain = BlockPool(8, enable_caching=True), chain_of([5, 6])
    first, second = ([pool.get_new_blocks(1) for _ in range(3)] for _ in range(2))
    for group in (0, 1, 2):
        cache_group(pool, chain, first, group, [0])
    mine = [list(first[0]), list(second[1]), list(second[2])]
    expect(cache_group(pool, chain, mine, 2, [0]), True)
    expect(mine, [first[0], second[1], first[2]])


@invariant(6)
def test_it_says_whether_the_table_was_changed():
    pool, chain = BlockPool(8, enable_caching=True), chain_of([5, 6, 7, 8])
    first, second = pool.get_new_blocks(2), pool.get_new_blocks(2)
    told = [cache_group(pool, chain, [table], 0, [0, 1]) for table in (first, second, second)]
    expect(told, [False, True, False])


@invariant(6)
def test_a_change_early_on_is_told_too():
    pool, chain = BlockPool(8, enable_caching=True), chain_of([5, 6, 7, 8])
    first, second = pool.get_new_blocks(1), pool.get_new_blocks(2)
    cache_group(pool, chain, [first], 0, [0])
    expect(cache_group(pool, chain, [second], 0, [0, 1]), True)


@invariant(6)
def test_whatever_comes_behind_it():
    pool, chain = BlockPool(8, enable_caching=True), chain_of([5, 6, 7, 8])
    first, (own, _) = pool.get_new_blocks(2), pool.get_new_blocks(2)
    cache_group(pool, chain, [first], 0, [0, 1])
    expect(cache_group(pool, chain, [[own, first[1]]], 0, [0, 1]), True)  # the second one is right already
