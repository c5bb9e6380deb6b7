from folovllm.models.shard import share_of
from lab_judge import expect, invariant, raises


@invariant(1)
def test_a_number_for_each_output():
    shares = [share_of("q_proj", 32, mine, 32) for mine in (range(16), range(16, 32))]
    expect(shares, [slice(0, 16), slice(16, 32)])


@invariant(1)
def test_three_ranks_of_unequal_parts():
    shares = [share_of("down_proj", 40, mine, 40) for mine in (range(16), range(16, 32), range(32, 40))]
    expect(shares, [slice(0, 16), slice(16, 32), slice(32, 40)])


@invariant(2)
def test_eight_codes_in_a_number():
    shares = [share_of("down_proj", 4, mine, 32) for mine in (range(8), range(8, 24), range(24, 32))]
    expect(shares, [slice(0, 1), slice(1, 3), slice(3, 4)])


@invariant(2)
def test_a_scale_for_a_group():
    expect([share_of("o_proj", 3, range(at, at + 128), 384) for at in (0, 256)], [slice(0, 1), slice(2, 3)])


@invariant(2)
def test_a_list_can_be_cut_by_it():
    expect(list("abcd")[share_of("down_proj", 4, range(8, 24), 32)], ["b", "c"])


@invariant(3)
def test_it_does_not_begin_in_a_packed_number():
    with raises(ValueError, says="cannot be cut"):
        share_of("layers.0.mlp.down_proj", 4, range(4, 16), 32)


@invariant(3)
def test_it_does_not_end_in_a_packed_number():
    with raises(ValueError, says="cannot be cut"):
        share_of("layers.0.mlp.down_proj", 4, range(20), 32)


@invariant(3)
def test_a_length_that_fits_is_not_enough():
    with raises(ValueError, says="cannot be cut"):
        share_of("layers.0.mlp.down_proj", 4, range(4, 12), 32)


@invariant(3)
def test_the_error_names_the_tensor():
    with raises(ValueError, says="layers.7.mlp.up_proj"):
        share_of("layers.7.mlp.up_proj", 1, range(8, 16), 16)
