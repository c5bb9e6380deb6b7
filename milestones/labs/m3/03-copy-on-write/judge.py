from folovllm.core.kv_cache_manager import KVCacheManager
from lab_judge import expect, invariant
from support import sequence


def parent_of(kv, num_tokens):
    """A sequence whose tokens are all in the cache."""
    seq = sequence("parent", num_tokens)
    seq.block_ids = kv.pool.get_new_blocks(kv.blocks_for(num_tokens))
    seq.num_computed_tokens = num_tokens
    return seq


@invariant(1)
def test_a_fork_names_the_blocks_of_the_first_tokens():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    parent, child = parent_of(kv, 10), sequence("child", 10)
    kv.fork(parent, child, 5)
    expect((child.block_ids, child.num_computed_tokens), ([1, 2], 5))
    expect([kv.pool.refs(block) for block in (1, 2, 3)], [2, 2, 1])


@invariant(1)
def test_both_tables_grow_by_themselves():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    parent, child = parent_of(kv, 8), sequence("child", 8)
    kv.fork(parent, child, 8)
    parent.block_ids.append(7)
    expect(child.block_ids, [1, 2])


@invariant(2)
def test_a_table_grows_block_by_block():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    seq = sequence("a", 9)
    expect(kv.allocate_slots([(seq, 8)]), [])
    expect(seq.block_ids, [1, 2])
    seq.num_computed_tokens = 8
    expect(kv.allocate_slots([(seq, 1)]), [])
    expect(seq.block_ids, [1, 2, 3])


@invariant(2)
def test_a_table_grows_by_the_neighbour_of_its_last_block():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    seq = parent_of(kv, 8)
    kv.pool.free_blocks(kv.pool.get_new_blocks(2))  # 3 and 4 go to the end of the free list, behind 5 to 8
    kv.allocate_slots([(seq, 1)])
    expect(seq.block_ids, [1, 2, 3])


@invariant(2)
def test_each_table_grows():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    a, b = sequence("a", 8), sequence("b", 4)
    expect(kv.allocate_slots([(a, 8), (b, 4)]), [])
    expect((a.block_ids, b.block_ids), ([1, 2], [3]))


@invariant(3)
def test_all_or_nothing():
    kv = KVCacheManager(num_blocks=3, block_size=4)
    a, b = sequence("a", 8), sequence("b", 8)
    expect(kv.allocate_slots([(a, 8), (b, 8)]), None)
    expect((a.block_ids, b.block_ids, kv.pool.num_free), ([], [], 3))


@invariant(3)
def test_some_blocks_are_kept_free():
    kv = KVCacheManager(num_blocks=3, block_size=4)
    seq = sequence("a", 8)
    expect(kv.allocate_slots([(seq, 8)], keep_free=2), None)
    expect(kv.allocate_slots([(seq, 8)], keep_free=1), [])


@invariant(4)
def test_a_shared_block_is_copied_before_it_is_written():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    parent, child = parent_of(kv, 9), sequence("child", 10)
    kv.fork(parent, child, 9)
    expect(kv.allocate_slots([(child, 1)]), [(3, 4)])
    expect((parent.block_ids, child.block_ids), ([1, 2, 3], [1, 2, 4]))


@invariant(4)
def test_the_block_is_that_of_the_first_token_to_come():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    parent, child = parent_of(kv, 9), sequence("child", 13)
    kv.fork(parent, child, 9)
    expect(kv.allocate_slots([(child, 4)]), [(3, 4)])  # positions 9 to 12
    expect((parent.block_ids, child.block_ids), ([1, 2, 3], [1, 2, 4, 5]))


@invariant(4)
def test_a_full_block_stays_shared():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    parent, child = parent_of(kv, 8), sequence("child", 9)
    kv.fork(parent, child, 8)
    expect(kv.allocate_slots([(child, 1)]), [])
    expect(child.block_ids, [1, 2, 3])


@invariant(4)
def test_the_writer_gives_its_reference_back():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    parent, child = parent_of(kv, 9), sequence("child", 10)
    kv.fork(parent, child, 9)
    kv.allocate_slots([(child, 1)])
    expect([kv.pool.refs(block) for block in (3, 4)], [1, 1])


@invariant(5)
def test_the_last_writer_keeps_the_block():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    seqs = [parent_of(kv, 9), sequence("b", 10), sequence("c", 10)]
    kv.fork(seqs[0], seqs[1], 9)
    kv.fork(seqs[0], seqs[2], 9)
    expect(kv.allocate_slots([(seq, 1) for seq in seqs]), [(3, 4), (3, 5)])
    expect([seq.block_ids[2] for seq in seqs], [4, 5, 3])
