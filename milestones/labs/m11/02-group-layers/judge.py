import pytest

from folovllm.kv_cache_groups import group_layers
from lab_judge import expect, invariant

HEADS = (2, 16)


def grouped(windows, kv_heads=None, **more):
    groups = group_layers(windows, kv_heads or [HEADS] * len(windows), 4, 32, **more)
    return groups.windows, groups.layers


@invariant(1)
def test_a_kind_is_a_group_in_the_order_of_its_layers():
    expect(grouped([None, 8, None, 8]), ((None, 8), ((0, 2), (1, 3))))


@invariant(1)
def test_without_windows_there_is_one_kind():
    groups = group_layers((), [HEADS] * 3, 4, 32)
    expect((groups.windows, groups.layers), ((None,), ((0, 1, 2),)))


@invariant(2)
def test_the_frequent_kind_is_cut_to_the_size_of_the_rare_one():
    expect(grouped([None, 8, 8, 8, 8, 8, None]), ((None, 8, 8, 8), ((0, 6), (1, 2), (3, 4), (5,))))


@invariant(2)
def test_three_kinds_are_cut_alike():
    windows = [8, 4, 8, None, None, None]
    expect(grouped(windows)[1], ((3,), (4,), (5,), (0,), (2,), (1,)))


@invariant(2)
def test_the_last_group_is_the_one_that_has_fewer():
    expect(grouped([None] * 3 + [8] * 4)[1], ((0, 1, 2), (3, 4, 5), (6,)))


@invariant(3)
@pytest.mark.parametrize(("many", "groups"), [(12, 2), (14, 2), (15, 3), (16, 3)])
def test_nearly_as_many_layers_are_a_group_with_empty_places(many, groups):
    windows, layers = grouped([None] * 12 + [8] * many)
    expect((len(windows), sum(len(group) for group in layers)), (groups, 12 + many))


@invariant(3)
def test_the_most_frequent_of_three_kinds_counts():
    windows, _ = grouped([None] * 12 + [8] * 13 + [4] * 16)
    expect(windows, (None, 8, 8, 4, 4))


@invariant(4)
def test_all_keys_first_then_the_widest_window():
    expect(grouped([16, None, 64, 8])[0], (None, 64, 16, 8))


@invariant(5)
def test_heads_of_several_sizes_stay_in_one_table():
    expect(grouped([None, 8], [(2, 16), (2, 32)]), ((None,), ((0, 1),)))


@invariant(5)
def test_so_do_layers_whose_reader_knows_one_table():
    expect(grouped([4, 8, 8], one_table=True), ((None,), ((0, 1, 2),)))


@invariant(5)
def test_a_single_kind_keeps_its_window():
    expect(grouped([8, 8], [(2, 16), (2, 32)], one_table=True), ((8,), ((0, 1),)))


@invariant(5)
@pytest.mark.parametrize("other", [(4, 16), (2, 32), (4, 8)])
def test_one_layer_with_other_heads_is_enough(other):
    expect(grouped([None, 8, 4], [HEADS, other, HEADS]), ((None,), ((0, 1, 2),)))


@invariant(6)
def test_block_size_and_chunk_come_along():
    groups = group_layers([8], [HEADS], 4, 32)
    expect((groups.block_size, groups.chunk), (4, 32))


@invariant(6)
def test_what_is_returned_can_be_hashed():
    expect(isinstance(hash(group_layers([None, 8], [HEADS] * 2, 4, 32)), int), True)


@invariant(6)
def test_what_is_given_stays_as_it_is():
    windows, kv_heads = [None, 8, 4], [HEADS, (2, 32), HEADS]
    group_layers(windows, kv_heads, 4, 32)
    expect((windows, kv_heads), ([None, 8, 4], [HEADS, (2, 32), HEADS]))
