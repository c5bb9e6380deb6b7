from math import cos, sin

import torch

from folovllm.layers.rotary import RotaryEmbedding, apply_rotary
from lab_judge import expect, expect_close, invariant

# head_dim 4, theta 10,000: the first pair turns by 1 per position, the second by 0.01.
ROTARY = RotaryEmbedding(4, 2048, {"rope_theta": 10000.0})


def turned(vector, position):
    x = torch.tensor(vector).view(1, 1, -1)
    return apply_rotary(x, *ROTARY(torch.tensor([position]))).flatten()


@invariant(1)
def test_the_first_pair_is_elements_0_and_2():
    expect_close(
        turned([1.0, 0.0, 0.0, 0.0], position=1),
        [cos(1), 0.0, sin(1), 0.0],
    )


@invariant(1)
def test_the_second_pair_turns_a_hundred_times_slower():
    expect_close(turned([0.0, 0.0, 0.0, 1.0], position=50), [0.0, -sin(0.5), 0.0, cos(0.5)])


@invariant(1)
def test_a_longer_head_has_its_pairs_further_apart():
    rotary = RotaryEmbedding(8, 2048, {"rope_theta": 10000.0})
    x = torch.eye(8)[0].view(1, 1, 8)  # element 0 is 1, and 4 is the other one of its pair
    out = apply_rotary(x, *rotary(torch.tensor([1])))
    expect_close(out.flatten(), [cos(1), 0.0, 0.0, 0.0, sin(1), 0.0, 0.0, 0.0])


@invariant(2)
def test_nothing_turns_at_position_0():
    expect_close(turned([1.0, 2.0, 3.0, 4.0], position=0), [1.0, 2.0, 3.0, 4.0])


@invariant(2)
def test_only_the_distance_counts():
    query, key = [1.0, 2.0, 3.0, 4.0], [4.0, -1.0, 2.0, 0.5]
    near = turned(query, position=7) @ turned(key, position=0)
    far = turned(query, position=107) @ turned(key, position=100)
    expect_close(float(far), float(near), atol=1e-3)


@invariant(3)
def test_one_row_of_cosines_serves_all_heads():
    wide_cos, wide_sin = ROTARY(torch.tensor([3, 4, 5]))
    expect((list(wide_cos.shape), list(wide_sin.shape)), ([3, 1, 4], [3, 1, 4]))


@invariant(3)
def test_the_first_half_of_sin_is_negated():
    _, wide_sin = ROTARY(torch.tensor([1]))
    plain, negated = [sin(1), sin(0.01)], [-sin(1), -sin(0.01)]
    expect_close(wide_sin.flatten(), [*negated, *plain])


@invariant(3)
def test_each_token_has_its_own_position_and_its_heads_turn_alike():
    x = torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(2, 3, 4)  # two tokens, three heads
    out = apply_rotary(x, *ROTARY(torch.tensor([9, 2])))
    expect_close(out[:, :, 0], [[cos(9)] * 3, [cos(2)] * 3])


@invariant(3)
def test_each_step_has_rows_of_its_own():
    ROTARY(torch.tensor([7, 8, 9]))
    first = ROTARY(torch.tensor([2, 9]))[0][0, 0, 0]
    second = ROTARY(torch.tensor([5, 9]))[0][0, 0, 0]
    expect_close([float(first), float(second)], [cos(2), cos(5)])


@invariant(3)
def test_the_table_is_only_read():
    table = ROTARY.cos_sin.clone()
    ROTARY(torch.tensor([3, 4, 5]))
    same = torch.equal(ROTARY.cos_sin, table)
    expect(same, True)


@invariant(3)
def test_so_is_what_is_turned():
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 4)
    apply_rotary(x, *ROTARY(torch.tensor([9])))
    expect(x.flatten(), [1.0, 2.0, 3.0, 4.0])


@invariant(3)
def test_all_layers_turn_by_the_same_rows():
    positions, q = torch.tensor([9]), torch.tensor([1.0, 0.0, 0.0, 0.0]).view(1, 1, 4)
    rows = ROTARY(positions)
    first, second = apply_rotary(q, *rows), apply_rotary(2 * q, *rows)
    expect_close([float(first[0, 0, 0]), float(second[0, 0, 0])], [cos(9), 2 * cos(9)])
    expect(positions.tolist(), [9])
    expect_close((rows[0] ** 2 + rows[1] ** 2).flatten(), [1.0] * 4)


@invariant(4)
def test_the_dtype_is_that_of_x():
    x = torch.ones(1, 1, 4, dtype=torch.bfloat16)
    out = apply_rotary(x, *ROTARY(torch.tensor([1])))
    expect(out.dtype, torch.bfloat16)


@invariant(4)
def test_the_result_is_rounded_once():
    x = torch.tensor([3.0, 5.0, 7.0, 11.0]).view(1, 1, -1)
    exact = apply_rotary(x, *ROTARY(torch.tensor([1001])))
    out = apply_rotary(x.bfloat16(), *ROTARY(torch.tensor([1001])))
    expect(out.flatten(), exact.bfloat16().flatten())
