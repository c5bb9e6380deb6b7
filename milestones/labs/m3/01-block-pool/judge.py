from folovllm.core.block_pool import BlockPool
from lab_judge import expect, invariant, raises


def free_list(pool):
    return list(pool.get_all_free_blocks())


@invariant(1)
def test_blocks_leave_the_free_list_with_one_reference_each():
    pool = BlockPool(5)
    expect(pool.get_new_blocks(3), [1, 2, 3])
    expect(free_list(pool), [4, 5])
    expect([pool.refs(block) for block in (1, 2, 3)], [1, 1, 1])


@invariant(1)
def test_num_free_follows():
    pool = BlockPool(5)
    pool.get_new_blocks(3)
    expect(pool.num_free, 2)


@invariant(1)
def test_it_follows_each_call_also_one_for_nothing():
    pool = BlockPool(5)
    expect([pool.get_new_blocks(2), pool.get_new_blocks(0), pool.get_new_blocks(1)], [[1, 2], [], [3]])
    expect(pool.num_free, 2)


@invariant(2)
def test_the_neighbour_comes_first():
    pool = BlockPool(6)
    expect(pool.get_new_blocks(2, after=4), [5, 6])


@invariant(2)
def test_without_a_free_neighbour_the_front_of_the_list_is_taken():
    pool = BlockPool(4)
    expect(pool.get_new_blocks(2, after=3), [4, 1])


@invariant(2)
def test_the_next_call_begins_at_the_front_again():
    pool = BlockPool(6)
    expect([pool.get_new_blocks(1, after=4), pool.get_new_blocks(1)], [[5], [1]])


@invariant(3)
def test_too_many_are_refused():
    pool = BlockPool(4)
    pool.get_new_blocks(1)
    with raises(ValueError, says="count must be at most the 3 free blocks, got 4"):
        pool.get_new_blocks(4)


@invariant(3)
def test_a_refusal_changes_nothing():
    pool = BlockPool(4)
    with raises(ValueError):
        pool.get_new_blocks(5)
    expect((pool.num_free, free_list(pool)), (4, [1, 2, 3, 4]))


@invariant(3)
def test_the_last_free_block_can_be_had():
    pool = BlockPool(3)
    expect(pool.get_new_blocks(3), [1, 2, 3])
    expect((pool.num_free, free_list(pool)), (0, []))


@invariant(4)
def test_touch_adds_a_reference():
    pool = BlockPool(4)
    pool.get_new_blocks(2)
    pool.touch([1, 2])
    pool.touch([2])
    expect([pool.refs(1), pool.refs(2)], [2, 3])


@invariant(4)
def test_a_free_block_cannot_be_shared():
    pool = BlockPool(4)
    with raises(ValueError, says="block_id 1 is free: no sequence shares it"):
        pool.touch([1])


@invariant(4)
def test_the_message_names_the_block():
    pool = BlockPool(4)
    pool.get_new_blocks(1)
    with raises(ValueError, says="block_id 3 is free: no sequence shares it"):
        pool.touch([1, 3])


@invariant(5)
def test_freed_blocks_go_to_the_end():
    pool = BlockPool(5)
    pool.get_new_blocks(3)
    pool.free_blocks([2])
    pool.free_blocks([1])
    expect(free_list(pool), [4, 5, 2, 1])


@invariant(5)
def test_num_free_follows_what_comes_back():
    pool = BlockPool(5)
    pool.get_new_blocks(3)
    pool.free_blocks([2, 1])
    expect(pool.num_free, 4)


@invariant(5)
def test_a_shared_block_stays_until_its_last_reference_goes():
    pool = BlockPool(4)
    pool.get_new_blocks(2)
    pool.touch([1])
    pool.free_blocks([1])
    expect(free_list(pool), [3, 4])
    expect((pool.refs(1), pool.num_free), (1, 2))
    pool.free_blocks([1])
    expect(free_list(pool), [3, 4, 1])


@invariant(5)
def test_a_free_block_cannot_be_freed():
    pool = BlockPool(4)
    pool.get_new_blocks(1)
    pool.free_blocks([1])
    with raises(ValueError, says="block_id 1 is free already"):
        pool.free_blocks([1])


@invariant(5)
def test_so_does_the_message_of_a_block_that_is_free():
    pool = BlockPool(4)
    pool.get_new_blocks(1)
    with raises(ValueError, says="block_id 3 is free already"):
        pool.free_blocks([1, 3])


@invariant(6)
def test_a_block_counts_as_shared_from_its_second_reference_on():
    pool = BlockPool(4)
    pool.get_new_blocks(2)
    pool.touch([1])
    expect(pool.num_shared, 1)
    pool.touch([1, 2])
    expect(pool.num_shared, 2)


@invariant(6)
def test_a_block_with_one_reference_left_is_shared_no_more():
    pool = BlockPool(4)
    pool.get_new_blocks(1)
    pool.touch([1, 1])
    shared = []
    for _ in range(3):
        pool.free_blocks([1])
        shared.append(pool.num_shared)
    expect(shared, [1, 0, 0])


@invariant(6)
def test_blocks_that_others_take_change_nothing_in_it():
    pool = BlockPool(3)
    pool.get_new_blocks(1)
    pool.touch([1])
    pool.get_new_blocks(1)
    expect(pool.num_shared, 1)


@invariant(6)
def test_the_last_block_of_the_pool_counts_too():
    pool = BlockPool(2)
    pool.get_new_blocks(2)
    pool.touch([1, 2])
    pool.free_blocks([1])
    expect(pool.num_shared, 1)


@invariant(7)
def test_blocks_that_can_be_walked_once_are_freed():
    pool = BlockPool(4)
    table = pool.get_new_blocks(3)
    pool.free_blocks(reversed(table))
    expect((pool.num_free, free_list(pool)), (4, [4, 3, 2, 1]))


@invariant(7)
def test_blocks_that_can_be_walked_once_are_shared():
    pool = BlockPool(4)
    table = pool.get_new_blocks(2)
    pool.touch(block for block in table)
    expect([pool.refs(1), pool.refs(2)], [2, 2])


@invariant(2)
def test_each_block_is_the_next_one_s_after_though_a_larger_one_was_taken():
    pool = BlockPool(7)
    pool.get_new_blocks(7)
    pool.free_blocks([5, 1, 4, 7, 2])  # 3 and 6 are in use
    expect(pool.get_new_blocks(4, after=3), [4, 5, 1, 2])
