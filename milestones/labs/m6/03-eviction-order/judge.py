from folovllm.core.block_pool import BlockPool
from lab_judge import expect, invariant, raises


def free_list(pool):
    return list(pool.get_all_free_blocks())


def keep(pool, table):
    """The blocks of this table can be found from now on; block 3 has the hash b"3" and the tokens [3, 3, 3, 3]."""
    for parent, block in zip([0, *table], table, strict=False):
        pool.cache_block(block, b"%d" % block, parent, [block] * 4, None)


@invariant(1)
def test_a_block_that_holds_nothing_goes_to_the_front():
    pool = BlockPool(5, enable_caching=True)
    pool.get_new_blocks(3)
    pool.free_blocks([2])
    expect(free_list(pool), [2, 4, 5])


@invariant(1)
def test_a_chain_loses_its_end_before_its_beginning():
    pool = BlockPool(3, enable_caching=True)
    table = pool.get_new_blocks(3)
    keep(pool, table)
    pool.free_blocks(reversed(table))
    expect(pool.get_new_blocks(2), [3, 2])


@invariant(1)
def test_a_block_that_can_be_found_goes_to_the_end():
    pool = BlockPool(5, enable_caching=True)
    table = pool.get_new_blocks(3)
    keep(pool, table)
    pool.free_blocks([3])
    expect(free_list(pool), [4, 5, 3])


@invariant(1)
def test_without_caching_all_go_to_the_end():
    pool = BlockPool(4)
    pool.get_new_blocks(2)
    pool.free_blocks([1])
    expect(free_list(pool), [3, 4, 1])


@invariant(2)
def test_a_neighbour_that_holds_nothing_is_taken():
    pool = BlockPool(6, enable_caching=True)
    expect(pool.get_new_blocks(2, after=4), [5, 6])


@invariant(2)
def test_a_neighbour_that_is_in_use_is_left_alone():
    pool = BlockPool(6, enable_caching=True)
    pool.get_new_blocks(5)
    pool.free_blocks([1])
    expect(pool.get_new_blocks(1, after=3), [1])


@invariant(2)
def test_a_neighbour_that_can_be_found_is_left_alone():
    pool = BlockPool(5, enable_caching=True)
    first, table = pool.get_new_blocks(1), pool.get_new_blocks(2)
    keep(pool, table)
    pool.free_blocks([3, 2])
    expect((first, table, free_list(pool)), ([1], [2, 3], [4, 5, 3, 2]))
    expect(pool.get_new_blocks(1, after=1), [4])


@invariant(2)
def test_with_no_block_in_front_it_is_the_first_of_the_list():
    pool = BlockPool(4, enable_caching=True)
    pool.get_new_blocks(3)
    pool.free_blocks([1])
    pool.free_blocks([2])
    expect((free_list(pool), pool.get_new_blocks(1)), ([2, 1, 4], [2]))


@invariant(3)
def test_what_is_handed_out_is_found_no_longer():
    pool = BlockPool(1, enable_caching=True)
    keep(pool, pool.get_new_blocks(1))
    pool.free_blocks([1])
    expect(pool.get_cached_block(b"1", 0, [1, 1, 1, 1], None), 1)
    pool.get_new_blocks(1)
    expect(pool.get_cached_block(b"1", 0, [1, 1, 1, 1], None), None)
    expect((pool.num_cached, pool.num_evicted), (0, 1))


@invariant(3)
def test_a_block_that_held_nothing_is_not_counted():
    pool = BlockPool(3, enable_caching=True)
    pool.get_new_blocks(3)
    expect(pool.num_evicted, 0)


@invariant(3)
def test_the_same_content_may_be_kept_again_elsewhere():
    pool = BlockPool(2, enable_caching=True)
    keep(pool, pool.get_new_blocks(2))
    pool.free_blocks([2, 1])
    pool.get_new_blocks(2)
    expect(pool.cache_block(2, b"1", 0, [1, 1, 1, 1], None), True)
    expect(pool.get_cached_block(b"1", 0, [1, 1, 1, 1], None), 2)


@invariant(3)
def test_the_others_can_still_be_found():
    pool = BlockPool(3, enable_caching=True)
    keep(pool, pool.get_new_blocks(3))
    pool.free_blocks([1, 2, 3])
    expect(pool.get_new_blocks(1), [1])
    expect([pool.get_cached_block(b"%d" % n, n - 1, [n] * 4, None) for n in (1, 2, 3)], [None, 2, 3])
    pool.get_new_blocks(1)
    expect(pool.num_evicted, 2)


@invariant(3)
def test_the_block_in_front_can_still_be_found():
    pool = BlockPool(3, enable_caching=True)
    keep(pool, pool.get_new_blocks(1))
    expect(pool.get_new_blocks(1, after=1), [2])
    expect(pool.get_cached_block(b"1", 0, [1, 1, 1, 1], None), 1)


@invariant(4)
def test_a_free_block_that_is_found_leaves_the_free_list():
    pool = BlockPool(4, enable_caching=True)
    keep(pool, pool.get_new_blocks(2))
    pool.free_blocks([2, 1])
    pool.touch([1])
    expect(free_list(pool), [3, 4, 2])
    expect((pool.refs(1), pool.num_free), (1, 3))


@invariant(4)
def test_a_block_in_use_gets_one_reference_more():
    pool = BlockPool(4, enable_caching=True)
    keep(pool, pool.get_new_blocks(2))
    pool.touch([1])
    expect((pool.refs(1), pool.num_free, pool.num_shared), (2, 2, 1))


@invariant(4)
def test_a_free_block_that_cannot_be_found_cannot_be_shared():
    pool = BlockPool(4, enable_caching=True)
    with raises(ValueError, says="block_id 1 is free"):
        pool.touch([1])


@invariant(4)
def test_the_only_free_block_may_be_touched():
    pool = BlockPool(1, enable_caching=True)
    keep(pool, pool.get_new_blocks(1))
    pool.free_blocks([1])
    pool.touch(iter([1]))  # any iterable will do
    expect((free_list(pool), pool.refs(1), pool.num_free), ([], 1, 0))


@invariant(4)
def test_a_block_of_three_tables_is_shared_once():
    pool = BlockPool(4, enable_caching=True)
    keep(pool, pool.get_new_blocks(2))
    pool.touch([1, 1])
    expect((pool.refs(1), pool.num_shared), (3, 1))


@invariant(5)
def test_what_was_used_again_is_evicted_last():
    pool = BlockPool(3, enable_caching=True)
    keep(pool, pool.get_new_blocks(1))
    keep(pool, pool.get_new_blocks(1))
    keep(pool, pool.get_new_blocks(1))
    pool.free_blocks([1, 2, 3])
    pool.touch([1])
    pool.free_blocks([1])
    expect(pool.get_new_blocks(3), [2, 3, 1])
