import torch

from folovllm.model_loader.quant_scheme import QuantScheme
from folovllm.quantize.calibration import Statistics
from folovllm.quantize.folding import SMALLEST, awq_scales
from lab_judge import expect, expect_close, invariant

W4 = QuantScheme("pack-quantized", 4, 8, True)


class Alone:
    """Where the inputs come from; each may have a factor of its own."""

    def shared(self, channels):
        return channels


class InPairs(Alone):
    """Inputs 0 and 1 are made by one row, 2 and 3 by the next one, …"""

    def shared(self, channels):
        return channels.view(-1, 2).mean(1).repeat_interleave(2)


def seen(x):
    statistics = Statistics(x.shape[1], x.device)
    statistics.add(x)
    return statistics


def inputs(sizes, seed=0):
    """400 of them; the n-th number is about as large as the n-th of `sizes`."""
    return torch.randn(400, len(sizes), generator=torch.Generator().manual_seed(seed)) * torch.tensor(sizes)


def weights(outs, size, seed=1):
    return torch.randn(outs, size, generator=torch.Generator().manual_seed(seed))


def slowly(weight, x, sizes, stored=torch.float32):
    """Each candidate's factors and its error, in float64, by multiplying all inputs. Symmetric, 4 bits, groups of 8,
    with scales of the dtype `stored`."""
    found = []
    for step in range(20):
        factors = sizes.double() ** (step / 20)
        factors = factors / (factors.max() * factors.min()).sqrt()
        grouped = (weight * factors).unflatten(1, (-1, 8))
        scale = (grouped.abs().amax(-1, keepdim=True) / 7).to(stored).double()
        rounded = ((grouped / scale).round().clamp(-8, 7) * scale).flatten(1) / factors
        found.append((((x.double() @ (rounded - weight).T) ** 2).sum().item(), factors))
    return found


@invariant(1)
def test_equal_inputs_need_no_factors():
    x = torch.ones(10, 8) * torch.tensor([[1.0], [-1.0]]).repeat(5, 1)
    expect_close(awq_scales(weights(4, 8), seen(x), Alone(), W4, torch.float32), torch.ones(8))


@invariant(2)
def test_the_largest_and_the_smallest_factor():
    x = inputs([1.0, 1.0, 40.0, 1.0, 1.0, 1.0, 1.0, 4.0])
    scales = awq_scales(weights(64, 8), seen(x), Alone(), W4, torch.float32)
    expect_close((scales.max() * scales.min()).item(), 1.0)


@invariant(2)
def test_they_are_a_power_of_the_mean_size():
    x = inputs([1.0, 2.0, 40.0, 1.0, 1.0, 3.0, 1.0, 4.0])
    scales = awq_scales(weights(64, 8), seen(x), Alone(), W4, torch.float32)
    powers = scales.log() - scales.log().mean()
    sizes = x.abs().mean(0).log() - x.abs().mean(0).log().mean()
    power = (powers @ sizes) / (sizes @ sizes)
    expect_close(powers, power * sizes, atol=1e-3)
    expect_close(20 * power.item(), round(20 * power.item()), atol=1e-2)


@invariant(3)
def test_factors_are_taken_out_again():
    weight = torch.tensor([[7.0, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    x = torch.tensor([[1.0, 20.0, *[20**0.5] * 6]])
    scales = awq_scales(weight, seen(x), Alone(), W4, torch.float32)
    # With the power 8/20 the second column is 3.31 times as large beside the first: 0.3 becomes 0.994, and its code 1.
    expect_close(scales[:3], torch.tensor([20**-0.2, 20**0.2, 1.0]))


@invariant(3)
def test_the_error_is_that_of_the_outputs():
    for seed in range(4):
        x, weight = inputs([1.0, 1.0, 8.0, 1.0, 0.5, 1.0, 20.0, 1.0] * 2, seed), weights(32, 16, seed + 10)
        errors = [error for error, _ in slowly(weight, x, x.abs().mean(0))]
        scales = awq_scales(weight, seen(x), Alone(), W4, torch.float32)
        expect_close(scales.double(), slowly(weight, x, x.abs().mean(0))[errors.index(min(errors))][1], atol=1e-4)


@invariant(3)
def test_the_grid_has_scales_of_the_dtype_that_is_stored():
    x, weight = inputs([1.0, 1.0, 8.0, 1.0, 0.5, 1.0, 20.0, 1.0] * 2, 89), weights(1, 16, 99)
    _, factors = min(slowly(weight, x, x.abs().mean(0), torch.bfloat16), key=lambda found: found[0])
    expect_close(awq_scales(weight, seen(x), Alone(), W4, torch.bfloat16).double(), factors, atol=1e-4)


@invariant(3)
def test_inputs_that_rise_and_fall_together():
    for seed in range(4):
        x = inputs([1.0, 1.0, 8.0, 1.0, 0.5, 1.0, 20.0, 1.0] * 2, seed)
        x, weight = x + x.cumsum(1), weights(8, 16, seed + 20)
        _, factors = min(slowly(weight, x, x.abs().mean(0)), key=lambda found: found[0])
        expect_close(awq_scales(weight, seen(x), Alone(), W4, torch.float32).double(), factors, atol=1e-4)


@invariant(4)
def test_among_equals_the_lowest_power():
    weight = torch.tensor([[0.0] * 8])  # nothing is rounded, whatever the factors are
    expect_close(awq_scales(weight, seen(inputs([1.0, 2.0] * 4)), Alone(), W4, torch.float32), torch.ones(8))


@invariant(5)
def test_inputs_that_share_a_factor():
    x = inputs([1.0, 9.0, 30.0, 1.0, 1.0, 1.0, 2.0, 1.0])
    scales = awq_scales(weights(64, 8), seen(x), InPairs(), W4, torch.float32)
    expect_close(scales[::2], scales[1::2])
    _, factors = min(slowly(weights(64, 8), x, InPairs().shared(x.abs().mean(0))), key=lambda found: found[0])
    expect_close(scales.double(), factors, atol=1e-4)


@invariant(6)
def test_an_input_that_was_always_zero():
    x = inputs([1.0, 0.0, 3.0, 1.0, 1.0, 8.0, 1.0, 1.0])
    weight, statistics = weights(16, 8), seen(x)
    before = weight.tolist(), statistics.mean_size.tolist(), statistics.hessian.tolist()
    scales = awq_scales(weight, statistics, Alone(), W4, torch.float32)
    expect(bool(scales.isfinite().all() and (scales > 0).all()), True)
    expect((weight.tolist(), statistics.mean_size.tolist(), statistics.hessian.tolist()), before)


@invariant(6)
def test_it_counts_as_a_small_one():
    x = torch.zeros(4, 8)
    x[:, 0] = 1.0
    weight = torch.tensor([[0.3, 7.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    scales = awq_scales(weight, seen(x), Alone(), W4, torch.float32)
    expect_close((scales[0] / scales[1]).log10().item() * 20 % 5, 0.0, atol=1e-3)
    expect(bool(scales[0] > scales[1]), True)


@invariant(6)
def test_the_small_size_is_to_a_power_too():
    for seed in range(4):
        x = inputs([1.0, 0.0, 3.0, 1.0, 1.0, 8.0, 1.0, 40.0], seed)
        weight, sizes = weights(2, 8, seed + 30), x.abs().mean(0).clamp(min=SMALLEST)
        _, factors = min(slowly(weight, x, sizes), key=lambda found: found[0])
        expect_close(awq_scales(weight, seen(x), Alone(), W4, torch.float32).double(), factors, atol=1e-3)


@invariant(6)
def test_each_layer_has_factors_of_its_own():
    x = inputs([1.0, 1.0, 3.0, 1.0, 1.0, 8.0, 1.0, 40.0])
    uneven = awq_scales(weights(16, 8), seen(x), Alone(), W4, torch.float32)
    even = awq_scales(weights(16, 8), seen(torch.ones(10, 8)), Alone(), W4, torch.float32)
    expect(bool((uneven == even).all()), False)
