import torch

from folovllm.layers.quantization.codes import choose_grid, round_to_nearest, to_codes
from lab_judge import expect, expect_close, invariant

EIGHT = [0.31, -0.12, 0.07, -0.28, 0.02, 0.19, -0.05, 0.24]


@invariant(1)
def test_a_symmetric_grid_by_hand():
    scale, zero = choose_grid(torch.tensor([EIGHT]), bits=4, symmetric=True)
    expect_close(scale, torch.tensor([0.31 / 7]))
    expect((zero.tolist(), zero.dtype), ([0], torch.int8))


@invariant(1)
def test_the_largest_in_size_may_be_negative():
    scale, _ = choose_grid(torch.tensor([[-12.7, 3.0]]), bits=8, symmetric=True)
    expect_close(scale, torch.tensor([0.1]))


@invariant(1)
def test_each_group_has_its_own():
    grouped = torch.tensor([[[7.0, 1.0], [0.7, 0.1]], [[70.0, 1.0], [0.07, 0.01]]])
    scale, _ = choose_grid(grouped, bits=4, symmetric=True)
    expect_close(scale, torch.tensor([[1.0, 0.1], [10.0, 0.01]]))


@invariant(1)
def test_a_scale_is_float32():
    for symmetric in (True, False):
        scale, _ = choose_grid(torch.tensor([EIGHT]), bits=4, symmetric=symmetric)
        expect(scale.dtype, torch.float32)


@invariant(2)
def test_an_asymmetric_scale_by_hand():
    scale, _ = choose_grid(torch.tensor([[3.0, -0.75, 0.9]]), bits=4, symmetric=False)
    expect_close(scale, torch.tensor([0.25]))


@invariant(2)
def test_the_same_with_8_bits():
    scale, _ = choose_grid(torch.tensor([[-1.0, 50.0]]), bits=8, symmetric=False)
    expect_close(scale, torch.tensor([0.2]))


@invariant(3)
def test_the_zero_is_the_code_of_zero():
    _, zero = choose_grid(torch.tensor([[3.0, -0.75, 0.9], [1.0, -2.0, 0.0]]), bits=4, symmetric=False)
    expect((zero.tolist(), zero.dtype), ([-5, 2], torch.int8))


@invariant(3)
def test_the_zero_is_the_nearest_code():
    for lowest, nearest in ((-0.54, -5), (-0.7, -4)):  # the code of 0.0 would be -4.81, and -4.11
        _, zero = choose_grid(torch.tensor([[2.0, lowest]]), bits=4, symmetric=False)
        expect(zero.tolist(), [nearest])


@invariant(3)
def test_a_zero_is_a_code():
    _, zero = choose_grid(torch.tensor([[-15.0, -3.0]]), bits=4, symmetric=False)
    expect(zero.tolist(), [7])


@invariant(4)
def test_weights_above_zero():
    scale, zero = choose_grid(torch.tensor([[2.0, 3.0]]), bits=4, symmetric=False)
    expect_close(scale, torch.tensor([0.2]))
    expect(zero.tolist(), [-8])


@invariant(4)
def test_weights_below_zero():
    scale, zero = choose_grid(torch.tensor([[-2.0, -3.0]]), bits=4, symmetric=False)
    expect_close(scale, torch.tensor([0.2]))
    expect(zero.tolist(), [7])


@invariant(5)
def test_a_group_of_zeros():
    for symmetric in (True, False):
        scale, _ = choose_grid(torch.zeros(1, 8), bits=4, symmetric=symmetric)
        expect(scale.tolist(), [1.0])
        codes = round_to_nearest(torch.zeros(1, 8), bits=4, group_size=8, symmetric=symmetric)
        expect(codes.dequantize().tolist(), [[0.0] * 8])


@invariant(5)
def test_a_group_of_zeros_beside_another():
    for symmetric, other in ((True, 0.5), (False, 3.5 / 15)):
        scale, _ = choose_grid(torch.tensor([[0.0, 0.0], [3.5, 0.0]]), bits=4, symmetric=symmetric)
        expect_close(scale, torch.tensor([1.0, other]))


@invariant(5)
def test_small_weights_are_no_zeros():
    scale, _ = choose_grid(torch.tensor([[7e-6, -1e-6]]), bits=4, symmetric=True)
    expect_close(scale, torch.tensor([1e-6]), atol=1e-9)


@invariant(6)
def test_the_eight_codes_of_the_note():
    grouped, zero = torch.tensor([EIGHT]), torch.zeros(1, dtype=torch.int8)
    codes = to_codes(grouped, torch.tensor([0.31 / 7]), zero, bits=4)
    expect(codes.tolist(), [[7, -3, 2, -6, 0, 4, -1, 5]])
    expect(codes.dtype, torch.int8)


@invariant(6)
def test_the_zero_is_added():
    grouped = torch.tensor([[-0.75, 0.0, 0.9, 3.0]])
    codes = to_codes(grouped, torch.tensor([0.25]), torch.tensor([-5], dtype=torch.int8), bits=4)
    expect(codes.tolist(), [[-8, -5, -1, 7]])


@invariant(6)
def test_the_zero_is_added_to_what_is_rounded():
    grouped, zero = torch.tensor([[0.5, 1.5, 2.5]]), torch.tensor([1], dtype=torch.int8)
    expect(to_codes(grouped, torch.tensor([1.0]), zero, bits=4).tolist(), [[1, 3, 3]])


@invariant(6)
def test_what_is_outside_becomes_the_first_or_the_last_code():
    grouped, zero = torch.tensor([[9.0, -9.0, 7.0, -8.0]]), torch.zeros(1, dtype=torch.int8)
    codes = to_codes(grouped, torch.tensor([1.0]), zero, bits=4)
    expect(codes.tolist(), [[7, -8, 7, -8]])


@invariant(6)
def test_8_bits_have_a_wider_range():
    grouped, zero = torch.tensor([[130.0, -130.0]]), torch.zeros(1, dtype=torch.int8)
    expect(to_codes(grouped, torch.tensor([1.0]), zero, bits=8).tolist(), [[127, -128]])


@invariant(6)
def test_rows_of_groups():
    grouped, scale = torch.tensor([[[1.0, 3.0], [1.0, 3.0]]]), torch.tensor([[1.0, 0.5]])
    codes = to_codes(grouped, scale, torch.tensor([[0, 1]], dtype=torch.int8), bits=4)
    expect(codes.tolist(), [[[1, 3], [3, 7]]])


@invariant(6)
def test_each_weight_has_codes_of_its_own():
    scale, zero = torch.tensor([0.5]), torch.tensor([0], dtype=torch.int8)
    first, second = (to_codes(torch.tensor([[weight]]), scale, zero, bits=4) for weight in (1.0, 3.0))
    expect([first.tolist(), second.tolist()], [[[2]], [[6]]])


@invariant(6)
def test_quotients_are_those_of_float32():
    grouped, zero = torch.arange(-40, 41)[None] * 0.09, torch.zeros(1, dtype=torch.int8)
    codes = to_codes(grouped, torch.tensor([0.07]), zero, bits=8)
    expect(codes[0].tolist(), [round(weight / 0.07) for weight in grouped[0].tolist()])


@invariant(6)
def test_what_is_given_stays_as_it_is():
    grouped, scale, zero = torch.tensor([[3.0, -4.0]]), torch.tensor([0.5]), torch.tensor([1], dtype=torch.int8)
    choose_grid(grouped, bits=4, symmetric=True)
    to_codes(grouped, scale, zero, bits=4)
    expect([grouped.tolist(), scale.tolist(), zero.tolist()], [[[3.0, -4.0]], [0.5], [1]])
