import torch

from folovllm.layers.quantization.codes import Codes
from lab_judge import expect, expect_close, invariant


def codes_of(values, scale, zero=None):
    """Lists -> Codes with int8 values and zeros."""
    zero = None if zero is None else torch.tensor(zero, dtype=torch.int8)
    return Codes(torch.tensor(values, dtype=torch.int8), torch.tensor(scale), zero)


@invariant(1)
def test_one_group_by_hand():
    codes = codes_of([[1, 2], [3, -4], [0, 7]], [[0.5], [0.1], [1.0]])
    out = codes.multiply(torch.tensor([[10.0, 1.0], [0.0, 2.0]]))
    expect_close(out, torch.tensor([[6.0, 2.6, 7.0], [2.0, -0.8, 14.0]]))


@invariant(1)
def test_the_sum_is_scaled_and_not_each_code():
    codes = codes_of([[100, -100, 3]], [[1e37]])  # 100 * 1e37 is more than float32 can hold
    expect(codes.multiply(torch.ones(1, 3)).tolist(), torch.tensor([[3e37]]).tolist())


@invariant(2)
def test_each_group_has_its_own_scale():
    codes = codes_of([[1, 2, 3, 4], [1, 1, 1, 1]], [[1.0, 10.0], [0.5, 100.0]])
    expect_close(codes.multiply(torch.ones(1, 4)), torch.tensor([[73.0, 201.0]]))


@invariant(3)
def test_a_zero_is_taken_off_each_code():
    codes = codes_of([[3, 5]], [[2.0]], [[3]])
    expect_close(codes.multiply(torch.tensor([[20.0, -3.0]])), torch.tensor([[-12.0]]))


@invariant(3)
def test_each_group_has_its_own_zero():
    codes = codes_of([[1, 2, 3, 4], [0, 0, 0, 0]], [[1.0, 10.0], [1.0, 1.0]], [[1, 3], [-8, 7]])
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 1.0]])
    expect_close(codes.multiply(x), torch.tensor([[42.0, -25.0], [10.0, -7.0]]))


@invariant(3)
def test_one_step_after_the_other():
    codes, x = codes_of([[3, 5]], [[2.0]], [[3]]), torch.tensor([[20.0, -3.0]])
    first, second = codes.multiply(x), codes.multiply(torch.tensor([[1.0, 1.0]]))
    expect([first.tolist(), second.tolist()], [[[-12.0]], [[4.0]]])
    expect(x.tolist(), [[20.0, -3.0]])


@invariant(4)
def test_a_code_is_255_above_its_zero():
    codes = codes_of([[127, -128, 100]], [[1.0]], [[-128]])
    expect_close(codes.multiply(torch.tensor([[1.0, 1.0, 2.0]])), torch.tensor([[711.0]]))


@invariant(5)
def test_activations_of_bfloat16_are_summed_in_float32():
    codes = codes_of([[7] * 64], [[0.1, 0.3]])
    x = torch.full((1, 64), 1.0078125, dtype=torch.bfloat16)
    out = codes.multiply(x)
    expect(out.dtype, torch.float32)
    expect_close(out, torch.tensor([[64 / 2 * 7 * 1.0078125 * 0.4]]), atol=1e-4)


@invariant(5)
def test_zeros_beside_bfloat16():
    codes = codes_of([[7] * 64], [[0.25]], [[-8]])
    out = codes.multiply(torch.full((1, 64), 1.0078125, dtype=torch.bfloat16))
    expect(out.dtype, torch.float32)
    expect_close(out, torch.tensor([[64 * 15 * 1.0078125 / 4]]), atol=1e-4)


@invariant(5)
def test_no_weight_is_made(monkeypatch):
    made, dequantize = [], Codes.dequantize
    monkeypatch.setattr(Codes, "dequantize", lambda self: made.append(self.values.tolist()) or dequantize(self))
    codes_of([[1, 2], [3, -4]], [[0.5], [0.1]]).multiply(torch.ones(1, 2))
    expect(made, [])
