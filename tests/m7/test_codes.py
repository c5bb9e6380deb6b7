"""Rounding to the nearest code, by hand and by what must hold for any weight."""

from __future__ import annotations

import pytest
import torch

from folovllm.layers.quantization.codes import Codes, round_to_nearest, stack


def test_a_group_by_hand():
    weight = torch.tensor([[0.31, -0.12, 0.07, -0.28, 0.02, 0.19, -0.05, 0.24]])
    codes = round_to_nearest(weight, bits=4, group_size=8, symmetric=True)
    assert codes.scale.tolist() == [[pytest.approx(0.31 / 7)]]
    assert codes.values.tolist() == [[7, -3, 2, -6, 0, 4, -1, 5]]
    assert codes.zero is None


def test_an_asymmetric_group_by_hand():
    weight = torch.tensor([[0.0, 1.5, 3.0, -0.75, 0.2, 0.9, 2.3, 1.1]])  # 15 steps of 0.25, 3 of them below 0
    codes = round_to_nearest(weight, bits=4, group_size=8, symmetric=False)
    assert (codes.scale.tolist(), codes.zero.tolist()) == ([[0.25]], [[-5]])
    assert codes.values.tolist() == [[-5, 1, 7, -8, -4, -1, 4, -1]]


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("group_size", [8, 32, -1])
@pytest.mark.parametrize("bits", [4, 8])
def test_no_weight_is_off_by_more_than_half_a_scale(bits, group_size, symmetric):
    weight = torch.randn(20, 64) + (0 if symmetric else 0.5)
    codes = round_to_nearest(weight, bits=bits, group_size=group_size, symmetric=symmetric)
    assert codes.values.min() >= -(2 ** (bits - 1))
    assert codes.values.max() <= 2 ** (bits - 1) - 1
    off = (codes.dequantize() - weight).abs().unflatten(1, (codes.scale.shape[1], -1))
    # Asymmetric: the zero is rounded as well, and the smallest or largest weight may be off by that much more.
    assert (off <= codes.scale[..., None] * (0.5001 if symmetric else 1.0001)).all()


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
def test_zero_stays_zero(symmetric):
    weight = torch.randn(4, 32).abs() + 1
    weight[:, ::3], weight[3] = 0, 0
    codes = round_to_nearest(weight, bits=4, group_size=8, symmetric=symmetric)
    assert (codes.dequantize()[weight == 0] == 0).all()


def test_an_outlier_costs_its_own_group_alone():
    weight = torch.randn(1, 64).clamp(-2, 2)
    before = round_to_nearest(weight, bits=4, group_size=32, symmetric=True).dequantize()
    weight[0, 5] = 100
    after = round_to_nearest(weight, bits=4, group_size=32, symmetric=True).dequantize()
    assert torch.equal(after[:, 32:], before[:, 32:])
    assert after[0, :32].count_nonzero() == 1


def test_stacked_layers_mean_what_they_meant():
    one = round_to_nearest(torch.randn(3, 16), bits=4, group_size=8, symmetric=True)
    two = round_to_nearest(torch.randn(5, 16), bits=4, group_size=8, symmetric=False)
    both = stack([one, two])
    assert torch.equal(both.dequantize(), torch.cat([one.dequantize(), two.dequantize()]))


def test_codes_know_their_group():
    assert Codes(torch.zeros(2, 64, dtype=torch.int8), torch.ones(2, 4), None).group_size == 16


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", [8, 64, -1])
def test_codes_are_multiplied_as_the_weight_that_they_mean(group_size, symmetric):
    codes = round_to_nearest(torch.randn(5, 128) + 1, bits=8, group_size=group_size, symmetric=symmetric)
    x = torch.randn(3, 128)
    expected = x.double() @ codes.dequantize().double().T
    assert (codes.multiply(x) - expected).abs().max() < 1e-5 * expected.abs().max()
