"""What rounds a weight: against GPTQ written out column by column in float64, and against what must not change."""

from __future__ import annotations

import pytest
import torch

from folovllm.layers.linear import Linear
from folovllm.layers.norm import RMSNorm
from folovllm.model_loader.quant_scheme import QuantScheme
from folovllm.quantize.calibration import Statistics
from folovllm.quantize.folding import STEPS, Norm, Rows, awq_scales, fold, smoothquant_scales
from folovllm.quantize.gptq import gptq
from folovllm.quantize.rounding import Grid, output_error


def scheme(bits=4, group_size=32, symmetric=False):
    return QuantScheme("pack-quantized", bits, group_size, symmetric)


def inputs(count, size, seed=0):
    """[count, size], float32: they rise and fall together, and some are much larger than others."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(count, size, generator=generator) @ torch.randn(size, size, generator=generator)
    return mixed * torch.rand(size, generator=generator) ** 4


def seen(x):
    statistics = Statistics(x.shape[1], x.device)
    statistics.add(x)
    return statistics


def gptq_by_hand(weight, hessian, grid):
    """A column is rounded, the others make up for it, and it leaves the inverse: no factor and no block."""
    weight, hessian = weight.double().clone(), hessian.double().clone()
    size = weight.shape[1]
    hessian += 0.01 * hessian.diag().mean() * torch.eye(size, dtype=torch.float64)
    inverse = torch.linalg.inv(hessian)
    per_group = size // grid.scale.shape[1]
    low, high = -(2 ** (grid.bits - 1)), 2 ** (grid.bits - 1) - 1
    codes = torch.zeros(weight.shape, dtype=torch.int8)
    for column in sorted(range(size), key=lambda c: -hessian[c, c].item()):
        scale, zero = grid.scale[:, column // per_group].double(), grid.zero[:, column // per_group].double()
        code = ((weight[:, column] / scale).round() + zero).clamp(low, high)
        codes[:, column] = code.to(torch.int8)
        error = (weight[:, column] - (code - zero) * scale) / inverse[column, column]
        weight -= torch.outer(error, inverse[column])
        inverse -= torch.outer(inverse[:, column], inverse[column]) / inverse[column, column]
        inverse[column], inverse[:, column] = 0, 0
    return codes


@pytest.mark.parametrize("size", [24, 160, 288], ids=["one-block", "two-blocks", "three-blocks"])
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
def test_gptq_is_that_written_out_column_by_column(size, symmetric):
    x = inputs(4 * size, size).double()
    hessian, weight = x.T @ x / len(x), torch.randn(16, size).double()
    grid = Grid.of(weight.float(), scheme(group_size=8, symmetric=symmetric), torch.bfloat16)
    assert torch.equal(gptq(weight, hessian, grid).values, gptq_by_hand(weight, hessian, grid))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("seed", range(4))
def test_gptq_errs_less_than_round_to_nearest(bits, seed):
    hessian, weight = seen(inputs(512, 96, seed)).hessian, torch.randn(32, 96)
    grid = Grid.of(weight, scheme(bits), torch.bfloat16)
    found, nearest = (codes.dequantize() for codes in (gptq(weight, hessian, grid), grid.round(weight)))
    assert output_error(found - weight, hessian).sum() < 0.9 * output_error(nearest - weight, hessian).sum()


def test_gptq_rounds_to_the_nearest_where_inputs_have_nothing_to_do_with_each_other():
    weight = torch.randn(8, 64)
    grid = Grid.of(weight, scheme(), torch.float32)
    assert torch.equal(gptq(weight, torch.eye(64), grid).values, grid.round(weight).values)


def test_gptq_of_inputs_that_are_always_zero():
    x = inputs(256, 32)
    x[:, 5:9] = 0
    weight = torch.randn(8, 32)
    grid = Grid.of(weight, scheme(), torch.float32)
    codes = gptq(weight, seen(x).hessian, grid)
    assert torch.equal(codes.values[:, 5:9], grid.round(weight).values[:, 5:9])


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_scales_are_numbers_that_the_checkpoint_can_hold(stored):
    weight = torch.randn(8, 64) * 1e-3
    weight[0] = 1e-8  # its scale is nothing in float16
    grid = Grid.of(weight, scheme(), stored)
    assert torch.equal(grid.scale.to(stored).float(), grid.scale)
    error = (grid.round(weight).dequantize() - weight).abs().unflatten(1, (2, 32)).amax(2)
    assert (error < 0.6 * grid.scale).all()


def test_an_error_at_the_outputs_is_the_mean_square_over_the_inputs():
    x, change = inputs(100, 16), torch.randn(4, 16)
    assert torch.allclose(output_error(change, seen(x).hessian), (x @ change.T).square().mean(0), rtol=1e-4)


def test_statistics_of_inputs_that_are_divided():
    x, scales = inputs(100, 16), torch.rand(16) + 0.5
    found, expected = seen(x), seen(x / scales)
    found.divide(scales)
    for name in ("hessian", "mean_size", "largest"):
        assert torch.allclose(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=1e-7), name


@torch.no_grad()
def product(outs, size, bias=False):
    linear = Linear(size, outs, bias=bias)
    for parameter in linear.parameters():
        parameter.normal_()
    return linear


@torch.no_grad()
def norm(size):
    made = RMSNorm(size, 1e-6)
    made.weight.copy_(torch.randn(size).bfloat16())
    return made


def test_awq_errs_no_more_than_round_to_nearest():
    x = inputs(512, 64)
    weight, statistics = torch.randn(32, 64), seen(x)
    scales = awq_scales(weight, statistics, Norm(norm(64), torch.bfloat16), scheme(), torch.bfloat16)
    nearest, scaled = (
        Grid.of(weight * s, scheme(), torch.bfloat16).round(weight * s).dequantize() / s
        for s in (torch.ones(64), scales)
    )
    errors = [output_error(each - weight, statistics.hessian).sum() for each in (nearest, scaled)]
    assert errors[1] < 0.8 * errors[0]


def test_awqs_scales_are_a_power_of_the_inputs_mean_size():
    x = inputs(512, 64)
    scales = awq_scales(torch.randn(32, 64), seen(x), Norm(norm(64), torch.bfloat16), scheme(), torch.bfloat16)
    logs, sizes = scales.log(), x.abs().mean(0).clamp(min=1e-5).log()
    power = ((logs - logs.mean()) @ (sizes - sizes.mean())) / (sizes - sizes.mean()).square().sum()
    assert torch.allclose(logs - logs.mean(), power * (sizes - sizes.mean()), atol=1e-3)
    assert power * STEPS == pytest.approx((power * STEPS).round().item(), abs=1e-2)


@torch.no_grad()
def test_smoothquant_moves_all_or_nothing_at_its_ends():
    x = inputs(100, 16)
    source = Norm(norm(16), torch.float32)
    for alpha, part in ((1.0, "inputs"), (0.0, "weights")):
        linear, statistics = product(8, 16), seen(x)
        fold(linear, source, statistics, smoothquant_scales(linear.weight, statistics, source, alpha))
        largest = statistics.largest if part == "inputs" else linear.weight.abs().amax(0)
        assert torch.allclose(largest, torch.ones(16), rtol=1e-4)


@torch.no_grad()
def test_a_fold_into_a_norm_leaves_the_function():
    linear, source, x = product(8, 64), Norm(norm(64), torch.bfloat16), inputs(100, 64)
    before = linear(source.norm(x)[0])
    fold(linear, source, seen(x), torch.rand(64) * 3 + 0.1)
    assert torch.allclose(linear(source.norm(x)[0]), before, rtol=1e-4, atol=1e-5)
    weight = source.norm.weight
    assert torch.equal(weight.bfloat16().float(), weight)


@torch.no_grad()
def test_a_fold_leaves_a_channel_that_the_norm_makes_zero():
    source = Norm(norm(4), torch.bfloat16)
    source.norm.weight[2] = 0
    assert source.divide(torch.full((4,), 2.0)).tolist() == [2, 2, 1, 2]
    assert source.norm.weight[2] == 0


@pytest.mark.parametrize("heads, repeats", [(2, 1), (2, 3), (1, 1)])
@torch.no_grad()
def test_a_fold_into_rows_leaves_the_function(heads, repeats):
    """As attention reads v: each of its heads is read by `repeats` others, side by side."""
    before = Linear(12, {"q_proj": 5, "v_proj": 16}, bias=True)
    for parameter in before.parameters():
        parameter.normal_()
    source = Rows(before, "v_proj", heads, repeats)
    linear, x = product(8, 16 * repeats), torch.randn(10, 12)

    def outputs():
        v = before(x)[:, 5:].view(10, heads, 1, -1).expand(-1, -1, repeats, -1).flatten(1)
        return before(x)[:, :5], v, linear(v)

    queries, v, expected = outputs()
    scales = source.shared(torch.rand(16 * repeats) + 0.5)
    fold(linear, source, seen(v), scales)
    assert torch.equal(outputs()[0], queries)
    assert torch.allclose(outputs()[1], v / scales, rtol=1e-5, atol=1e-6)
    assert torch.allclose(outputs()[2], expected, rtol=1e-4, atol=1e-4)
