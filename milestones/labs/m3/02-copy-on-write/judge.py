from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.request import SequenceStatus
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


@invariant(1)
def test_a_fork_changes_nothing_else():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    parent, child = parent_of(kv, 10), sequence("child", 10)
    parent.status = SequenceStatus.RUNNING
    kv.fork(parent, child, 5)
    expect((parent.block_ids, parent.num_computed_tokens, child.status.name), ([1, 2, 3], 10, "WAITING"))


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
def test_what_a_table_has_it_does_not_get_again():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    seq = sequence("a", 8)
    expect([kv.allocate_slots([(seq, 8)]), kv.allocate_slots([(seq, 8)])], [[], []])
    expect((seq.block_ids, seq.num_computed_tokens), ([1, 2], 0))


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


@invariant(3)
def test_who_needs_no_block_leaves_them_all():
    kv = KVCacheManager(num_blocks=3, block_size=4)
    seq = parent_of(kv, 5)
    expect(kv.allocate_slots([(seq, 1)], keep_free=1), [])


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


@invariant(4)
def test_only_the_first_block_that_is_written_is_asked():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    parent, child = parent_of(kv, 4), sequence("child", 8)
    kv.fork(parent, child, 4)
    kv.allocate_slots([(child, 1)])  # block 2, of its own
    child.num_computed_tokens = 3  # position 3 is computed again, and block 1 is shared
    expect(kv.allocate_slots([(child, 2)]), [(1, 3)])
    expect((parent.block_ids, child.block_ids), ([1], [3, 2]))


@invariant(4)
def test_shared_blocks_behind_it_stay():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    parent, child = parent_of(kv, 8), sequence("child", 8)
    kv.fork(parent, child, 8)
    child.num_computed_tokens = 3
    expect(kv.allocate_slots([(child, 1)]), [(1, 3)])
    expect((parent.block_ids, child.block_ids), ([1, 2], [3, 2]))


@invariant(4)
def test_the_copy_is_asked_for_behind_the_old_block():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    parent, child = parent_of(kv, 3), sequence("child", 4)
    kv.fork(parent, child, 3)
    kv.pool.free_blocks(kv.pool.get_new_blocks(2))  # 2 and 3 go to the end of the free list, behind 4 to 8
    expect(kv.allocate_slots([(child, 1)]), [(1, 2)])


@invariant(4)
def test_not_behind_the_last_one():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    parent, child = parent_of(kv, 4), sequence("child", 8)
    kv.fork(parent, child, 4)
    others = kv.pool.get_new_blocks(2)  # 2 and 3
    kv.allocate_slots([(child, 1)])  # its table is 1, 4
    kv.pool.free_blocks(others)
    child.num_computed_tokens = 3  # position 3 is computed again
    expect((kv.allocate_slots([(child, 1)]), child.block_ids), ([(1, 2)], [2, 4]))


@invariant(4)
def test_a_copy_stands_where_the_old_block_stood():
    kv = KVCacheManager(num_blocks=3, block_size=4)
    other = kv.pool.get_new_blocks(1)
    parent, child = parent_of(kv, 6), sequence("child", 7)
    kv.fork(parent, child, 6)
    kv.pool.free_blocks(other)
    expect(kv.allocate_slots([(child, 1)]), [(3, 1)])
    expect(child.block_ids, [2, 1])


@invariant(4)
def test_behind_a_copy_a_table_grows_by_its_neighbour():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    parent, child = parent_of(kv, 3), sequence("child", 8)
    kv.fork(parent, child, 3)
    kv.pool.free_blocks(kv.pool.get_new_blocks(2))  # 2 and 3 are at the end of the free list
    kv.allocate_slots([(child, 5)])
    expect(child.block_ids, [2, 3])


@invariant(5)
def test_the_last_writer_keeps_the_block():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    seqs = [parent_of(kv, 9), sequence("b", 10), sequence("c", 10)]
    kv.fork(seqs[0], seqs[1], 9)
    kv.fork(seqs[0], seqs[2], 9)
    expect(kv.allocate_slots([(seq, 1) for seq in seqs]), [(3, 4), (3, 5)])
    expect([seq.block_ids[2] for seq in seqs], [4, 5, 3])


@invariant(5)
def test_the_copies_come_in_the_order_of_the_sequences():
    kv = KVCacheManager(num_blocks=9, block_size=4)
    first, second = parent_of(kv, 5), parent_of(kv, 5)  # blocks 1 and 2, 3 and 4
    a, b = sequence("a", 6), sequence("b", 6)
    kv.fork(first, a, 5)
    kv.fork(second, b, 5)
    expect(kv.allocate_slots([(b, 1), (a, 1)]), [(4, 5), (2, 6)])


@invariant(5)
def test_each_call_returns_its_own_copies():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    parent, child = parent_of(kv, 9), sequence("child", 10)
    kv.fork(parent, child, 9)
    expect([kv.allocate_slots([(child, 1)]), kv.allocate_slots([(child, 1)])], [[(3, 4)], []])


@invariant(5)
def test_the_list_of_sequences_is_only_read():
    kv = KVCacheManager(num_blocks=8, block_size=4)
    a, b = sequence("a", 3), sequence("b", 4)
    wanted = [(a, 3), (b, 4)]
    kv.allocate_slots(wanted)
    expect([(seq.seq_id, count) for seq, count in wanted], [("a", 3), ("b", 4)])
