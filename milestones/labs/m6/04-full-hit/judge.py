from folovllm.core.block_hash import HashChain
from folovllm.core.block_pool import BlockPool
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.request import Request, SequenceData
from folovllm.sampling_params import SamplingParams
from lab_judge import expect, invariant


def chain(tokens, salt=None):
    return HashChain(SequenceData(list(tokens)), 4, cache_salt=salt)


def find(pool, tokens, place, parent):
    """The block that holds tokens 4 * place to 4 * place + 3, behind `parent`."""
    hashes = chain(tokens)
    return pool.get_cached_block(hashes.block_hash(place), parent, hashes.tokens(place), None)


def two_alike():
    """Two tables for one prompt of 8 tokens: [1, 2] can be found, [3, 4] was computed beside it."""
    pool = BlockPool(6, enable_caching=True)
    first, second = pool.get_new_blocks(2), pool.get_new_blocks(2)
    pool.cache_full_blocks(chain(range(8)), first, 0, 2)
    return pool, second


@invariant(1)
def test_full_blocks_can_be_found_afterwards():
    pool = BlockPool(6, enable_caching=True)
    table = pool.get_new_blocks(3)
    expect(pool.cache_full_blocks(chain(range(10)), table, 0, 2), (2, False))
    expect((find(pool, range(10), 0, parent=0), find(pool, range(10), 1, parent=1)), (1, 2))
    expect(pool.num_cached, 2)


@invariant(1)
def test_a_table_goes_on_where_it_was():
    pool = BlockPool(6, enable_caching=True)
    table = pool.get_new_blocks(3)
    pool.cache_full_blocks(chain(range(12)), table, 0, 1)
    expect(pool.cache_full_blocks(chain(range(12)), table, 1, 3), (3, False))
    expect(find(pool, range(12), 2, parent=2), 3)


@invariant(1)
def test_a_salt_is_kept():
    pool = BlockPool(6, enable_caching=True)
    hashes = chain(range(4), salt="mine")
    pool.cache_full_blocks(hashes, pool.get_new_blocks(1), 0, 1)
    expect(pool.get_cached_block(hashes.block_hash(0), 0, hashes.tokens(0), "mine"), 1)


@invariant(1)
def test_what_can_be_found_counts_though_fewer_are_full():
    pool = BlockPool(6, enable_caching=True)
    table = pool.get_new_blocks(3)
    pool.cache_full_blocks(chain(range(8)), table, 0, 2)
    expect(pool.cache_full_blocks(chain(range(8)), table, 2, 1), (2, False))


@invariant(2)
def test_a_double_gives_way_to_the_block_that_has_the_content():
    pool, second = two_alike()
    expect(pool.cache_full_blocks(chain(range(8)), second, 0, 2), (2, True))
    expect(second, [1, 2])


@invariant(2)
def test_a_block_that_is_found_already_changes_nothing():
    pool = BlockPool(6, enable_caching=True)
    table = pool.get_new_blocks(2)
    pool.cache_full_blocks(chain(range(8)), table, 0, 2)
    expect(pool.cache_full_blocks(chain(range(8)), table, 0, 2), (2, False))


@invariant(2)
def test_a_full_hit_ends_with_the_blocks_of_the_first_request():
    kv = KVCacheManager(num_blocks=6, block_size=4, enable_prefix_caching=True)
    tables = []
    for name in ("first", "second"):
        request = Request(name, None, list(range(8)), SamplingParams())
        seq = request.get_seqs()[0]
        kv.get_computed_blocks(request, seq)
        kv.allocate_slots([(seq, 8 - seq.num_computed_tokens)])
        tables.append(list(seq.block_ids))  # as the step sees it
        seq.num_computed_tokens = 8
        kv.cache_blocks(seq)
    expect((tables, seq.block_ids), ([[1, 2], [1, 3]], [1, 2]))


@invariant(2)
def test_a_change_counts_whatever_comes_behind():
    pool, second = two_alike()
    expect(pool.cache_full_blocks(chain([0, 1, 2, 3, 50, 51, 52, 53]), second, 0, 2), (2, True))
    expect(second, [1, 4])
    expect(find(pool, range(8), 0, parent=0), 1)
    pool, second = two_alike()
    expect(pool.cache_full_blocks(chain(range(8)), [second[0], 2], 0, 2), (2, True))  # the last one is right already


@invariant(3)
def test_who_takes_it_counts_as_its_user():
    pool, second = two_alike()
    pool.cache_full_blocks(chain(range(8)), second, 0, 2)
    expect([pool.refs(block) for block in (1, 2)], [2, 2])


@invariant(3)
def test_the_double_is_free_again():
    pool, second = two_alike()
    pool.cache_full_blocks(chain(range(8)), second, 0, 2)
    expect([pool.refs(block) for block in (3, 4)], [0, 0])
    expect(pool.num_free, 4)


@invariant(3)
def test_it_may_have_been_free():
    pool, second = two_alike()
    pool.free_blocks([2, 1])
    pool.cache_full_blocks(chain(range(8)), second, 0, 2)
    expect([pool.refs(block) for block in (1, 2, 3, 4)], [1, 1, 0, 0])
    expect((sorted(pool.get_all_free_blocks()), pool.num_evicted), ([3, 4, 5, 6], 0))


@invariant(4)
def test_behind_a_block_that_is_not_kept_none_is():
    pool = BlockPool(8, enable_caching=True)
    other, table = pool.get_new_blocks(1), pool.get_new_blocks(3)
    hashes = chain(range(12))
    pool.cache_block(other[0], hashes.block_hash(1), 0, [9, 9, 9, 9], None)  # the same hash, other tokens
    expect(pool.cache_full_blocks(hashes, table, 0, 3), (1, False))
    expect((pool.num_cached, find(pool, range(12), 2, parent=3)), (2, None))


@invariant(4)
def test_the_change_before_it_counts():
    pool, second = two_alike()
    third, hashes = pool.get_new_blocks(1), chain([0, 1, 2, 3, 50, 51, 52, 53])
    pool.cache_block(third[0], hashes.block_hash(1), 0, [9, 9, 9, 9], None)  # the same hash, other tokens
    expect(pool.cache_full_blocks(hashes, second, 0, 2), (1, True))


@invariant(5)
def test_a_block_of_ones_own_may_be_written():
    pool = BlockPool(4, enable_caching=True)
    pool.get_new_blocks(2)
    pool.touch([2])
    expect([pool.may_write(1), pool.may_write(2)], [True, False])


@invariant(5)
def test_a_block_that_can_be_found_may_not():
    pool = BlockPool(4, enable_caching=True)
    pool.cache_full_blocks(chain(range(4)), pool.get_new_blocks(1), 0, 1)
    expect(pool.refs(1), 1)
    expect(pool.may_write(1), False)


@invariant(5)
def test_nor_may_one_that_no_table_names():
    expect(BlockPool(4, enable_caching=True).may_write(3), False)


@invariant(6)
def test_each_writer_of_such_a_block_takes_a_copy():
    pool = BlockPool(4, enable_caching=True)
    pool.cache_full_blocks(chain(range(4)), pool.get_new_blocks(1), 0, 1)
    pool.touch([1])
    expect(pool.copies_needed(1, num_writers=2), 2)


@invariant(6)
def test_of_any_other_the_last_writer_keeps_it():
    pool = BlockPool(4, enable_caching=True)
    pool.get_new_blocks(3)
    pool.touch([3])
    expect((pool.copies_needed(3, num_writers=2), pool.copies_needed(3, num_writers=1)), (1, 1))
    expect(pool.copies_needed(2, num_writers=1), 0)
