"""Our own CPU products against float64: of floats, of pairs of bfloat16 numbers, and of tiles of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from folovllm.layers import compiled_ops as cpu
from tests.m4.cpu_target import relative_error, target  # noqa: F401

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outs", "size"), [(1, 1), (100, 300), (257, 64), (33, 1000)])
@pytest.mark.usefixtures("target")
def test_products_and_the_same_bits_for_a_row_in_any_batch(dtype, outs, size):
    """As many rows as make several blocks, and columns that make several pieces."""
    torch.manual_seed(0)
    weight, x, bias = torch.randn(outs, size).to(dtype), torch.randn(131, size), torch.randn(outs)
    packed = cpu.pack(weight)
    whole = cpu.linear(x, packed, bias, outs)
    assert relative_error(whole, F.linear(x.double(), weight.double(), bias.double())) < 1e-6
    for rows in (*range(1, 30), 64, 130):
        assert torch.equal(cpu.linear(x[:rows], packed, bias, outs), whole[:rows])
    assert torch.equal(cpu.linear(x[77:78], packed, bias, outs), whole[77:78])
    assert cpu.linear(x[:0], packed, None, outs).shape == (0, outs)


@pytest.mark.parametrize(("outs", "size"), [(1, 1), (100, 301), (257, 64), (33, 1000)])
@pytest.mark.usefixtures("target")
def test_products_of_bfloat16_and_the_same_bits_for_a_row_in_any_batch(outs, size):
    """The product of what was rounded to bfloat16, summed in float32, rounded once: half a unit in the last place."""
    if not cpu.has_bf16_pairs():  # the CPU, or the one that was compiled for
        assert not hasattr(cpu.library(), "linear_bf16_pairs")
        assert not cpu.has_tiles()
        return
    torch.manual_seed(0)
    weight, x, bias = torch.randn(outs, size).bfloat16(), torch.randn(131, size).bfloat16(), torch.randn(outs)
    packed = cpu.pack(weight, pairs=True)
    whole = cpu.linear(x, packed, bias, outs)
    want = F.linear(x.double(), weight.double(), bias.double())
    assert whole.dtype == torch.bfloat16
    assert ((whole.double() - want).abs() <= want.abs() * 2**-8 + 1e-4 * size**0.5).all()
    for rows in (*range(1, 30), 64, 130):
        assert torch.equal(cpu.linear(x[:rows], packed, bias, outs), whole[:rows])
    assert torch.equal(cpu.linear(x[77:78], packed, bias, outs), whole[77:78])


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.usefixtures("target")
def test_more_rows_than_stay_in_a_cache(pairs):
    if pairs and not cpu.has_bf16_pairs():
        return
    torch.manual_seed(0)
    dtype = torch.bfloat16 if pairs else torch.float32
    weight, x = torch.randn(40, 512).to(dtype), torch.randn(2500, 512).to(dtype)
    packed = cpu.pack(weight, pairs=pairs)
    got = cpu.linear(x, packed, None, 40)
    assert relative_error(got, F.linear(x.double(), weight.double())) < (2**-9 if pairs else 1e-6)
    for first in (0, 1240, 2480):
        assert torch.equal(cpu.linear(x[first : first + 20], packed, None, 40), got[first : first + 20])


@pytest.mark.usefixtures("target")
def test_many_rows_go_to_several_threads():
    torch.manual_seed(0)
    weight, x = torch.randn(300, 512), torch.randn(70, 512)
    packed, threads = cpu.pack(weight), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        several = cpu.linear(x, packed, None, 300)
        torch.set_num_threads(1)
        assert torch.equal(cpu.linear(x, packed, None, 300), several)
    finally:
        torch.set_num_threads(threads)
