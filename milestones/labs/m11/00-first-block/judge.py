import pytest

from folovllm.kv_cache_groups import KVCacheGroups
from lab_judge import expect, invariant


@invariant(1)
@pytest.mark.parametrize(("position", "place"), [(8, 0), (9, 1), (12, 1), (13, 2)])
def test_the_block_of_the_oldest_key_in_the_window(position, place):
    groups = KVCacheGroups(windows=(6,), block_size=4)
    expect(groups.first_block(0, position), place)


@invariant(1)
def test_each_group_has_its_own_window():
    groups = KVCacheGroups(windows=(8, 3), block_size=2)
    expect([groups.first_block(group, 11) for group in (0, 1)], [2, 4])


@invariant(1)
def test_a_window_of_one_sees_its_own_key_alone():
    groups = KVCacheGroups(windows=(1,), block_size=4)
    expect([groups.first_block(0, position) for position in (0, 3, 4)], [0, 0, 1])


@invariant(1)
def test_blocks_of_one_token():
    groups = KVCacheGroups(windows=(3,), block_size=1)
    expect([groups.first_block(0, position) for position in range(5)], [0, 0, 0, 1, 2])


@invariant(2)
def test_at_the_beginning_the_window_is_not_full():
    groups = KVCacheGroups(windows=(6,), block_size=4)
    expect([groups.first_block(0, position) for position in range(5)], [0, 0, 0, 0, 0])


@invariant(3)
def test_without_a_window_all_blocks_are_read():
    groups = KVCacheGroups(windows=(None, 6), block_size=4)
    expect(groups.first_block(0, 100), 0)


@invariant(3)
def test_but_not_in_the_group_beside_it():
    groups = KVCacheGroups(windows=(None, 6), block_size=4)
    expect(groups.first_block(1, 13), 2)
