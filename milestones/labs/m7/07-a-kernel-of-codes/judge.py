import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch

from folovllm.layers.quantization.codes import Codes
from folovllm.layers.quantization.kernels.linear_codes import linear_codes, pack_codes
from lab_judge import expect_close, invariant


def product(x, values, scale, zero=None, bits=4):
    """The kernel's x [rows, in] by codes: values [outputs, in], scale and zero [outputs, groups]."""
    zero = None if zero is None else zero.to(torch.int8)
    return linear_codes(x, pack_codes(Codes(values.to(torch.int8), scale, zero), bits))


def plain(x, values, scale, zero=None):
    """The same in float64."""
    size = values.shape[1] // scale.shape[1]
    scale = scale.double().repeat_interleave(size, 1)
    zero = 0.0 if zero is None else zero.double().repeat_interleave(size, 1)
    return (x.double() @ ((values.double() - zero) * scale).T).float()


def drawn(outs, size, groups, bits=4):
    """Random values, scales and zeros."""
    generator = torch.Generator().manual_seed(outs + size)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
    values = torch.randint(low, high, (outs, size), generator=generator)
    zero = torch.randint(low, high, (outs, groups), generator=generator)
    return values, torch.rand(outs, groups, generator=generator) + 0.5, zero


@invariant(1)
def test_one_column_after_the_other():
    values, scale = torch.arange(256).remainder(16)[None] - 8, torch.full((1, 2), 0.5)  # a line: 8 pieces of 32
    expect_close(product(torch.eye(256), values, scale).flatten(), values[0] * 0.5)


@invariant(1)
def test_the_sum_of_a_line():
    values, scale, _ = drawn(3, 256, 2)
    x = torch.randn(2, 256, generator=torch.Generator().manual_seed(0))
    expect_close(product(x, values, scale), plain(x, values, scale), atol=1e-3)


@invariant(2)
def test_each_group_has_its_scale():
    values, scale = torch.ones(2, 256), torch.tensor([[1.0, 2, 3, 4], [10, 20, 30, 40]])
    expect_close(product(torch.ones(1, 256), values, scale), torch.tensor([[640.0, 6400.0]]), atol=1e-3)


@invariant(2)
def test_each_group_has_its_zero():
    values, scale, zero = drawn(3, 256, 16)  # groups of 16: a piece has 16 columns
    x = torch.randn(2, 256, generator=torch.Generator().manual_seed(1))
    expect_close(product(x, values, scale, zero), plain(x, values, scale, zero), atol=1e-3)


@invariant(3)
def test_lines_add_up():
    values, scale, zero = drawn(2, 1024, 8)
    x = torch.randn(2, 1024, generator=torch.Generator().manual_seed(2))
    expect_close(product(x, values, scale, zero), plain(x, values, scale, zero), atol=2e-3)


@invariant(3)
def test_codes_of_eight_bits():
    values, scale, zero = drawn(2, 512, 4, bits=8)
    x = torch.randn(2, 512, generator=torch.Generator().manual_seed(3))
    expect_close(product(x, values, scale, zero, bits=8), plain(x, values, scale, zero), atol=2e-2)


@invariant(4)
def test_what_is_behind_the_last_column_is_not_read():
    values, scale, zero = drawn(2, 96, 3)  # three pieces of a line of eight
    memory = torch.full((2, 400), float("nan"))
    memory[:, :96] = torch.randn(2, 96, generator=torch.Generator().manual_seed(4))
    expect_close(product(memory[:, :96], values, scale, zero), plain(memory[:, :96], values, scale, zero), atol=1e-3)


@invariant(5)
def test_bfloat16_is_multiplied_exactly():
    values, scale, zero = drawn(2, 256, 2)
    x = torch.randn(2, 256, generator=torch.Generator().manual_seed(5)).bfloat16()
    got, want = product(x, values, scale, zero), plain(x, values, scale, zero)
    expect_close(((got.float() - want).abs() / want.abs().amax()).max().item(), 0.0, atol=2**-7)
