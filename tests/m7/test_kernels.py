"""The compiled products with codes, against float64 and against exact integers."""

from __future__ import annotations

import pytest
import torch

from folovllm.layers.compiled_ops import compiled_unavailable_reason, multiplies_pairs
from folovllm.layers.linear import Linear
from folovllm.layers.quantization import compiled
from folovllm.layers.quantization.codes import Codes, round_to_nearest
from folovllm.layers.quantization.compiled import CompiledQuantizedLinear, kernel_group
from folovllm.layers.quantization.linear import QuantizedLinear, round_rows
from folovllm.layers.quantization.memory import CHUNK, WeightMemory
from folovllm.model_loader.quant_scheme import ONLINE, QuantScheme
from folovllm.utils import cpu_kernels
from tests.m4.cpu_target import target  # noqa: F401

pytestmark = pytest.mark.skipif(
    compiled_unavailable_reason(torch.float32) is not None, reason="the compiled kernels cannot run here"
)
DTYPES = [torch.float32] + [torch.bfloat16] * multiplies_pairs(torch.bfloat16)
ROWS = [1, 2, 3, 5, 6, 7, 12, 13, 40, 80]
W8A8 = QuantScheme("plain", 8, -1, True, 8)
W4A8 = QuantScheme("plain", 4, 32, True, 8)


@pytest.fixture
def codes_target(target, monkeypatch, request):  # noqa: F811
    """As compiled for other CPUs, too. One without pairs of bfloat16 numbers computes in float32."""
    monkeypatch.setattr(compiled, "library", cpu_kernels.library)
    dtype = request.node.callspec.params["dtype"]
    if dtype == torch.bfloat16 and not multiplies_pairs(dtype):
        pytest.skip("this CPU computes in float32")


def layer_of(codes, scheme, bias=None):
    layer = Linear(codes.values.shape[1], len(codes.values), bias=bias is not None)
    layer.weight = None
    if bias is not None:
        layer.bias.data = bias
    method = CompiledQuantizedLinear(scheme, "layer")
    method.keep(layer, codes)
    layer.method = method
    return layer


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize(
    ("outs", "size", "group"),
    [(100, 256, 32), (64, 576, -1), (33, 128, 128), (200, 1024, 64), (7, 8, 8), (16, 512, 256)],
)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.usefixtures("codes_target")
def test_products_with_codes(bits, outs, size, group, symmetric, dtype):
    codes = round_to_nearest(torch.randn(outs, size), bits=bits, group_size=group, symmetric=symmetric)
    bias, x = torch.randn(outs), torch.randn(80, size).to(dtype)
    out = layer_of(codes, QuantScheme("plain", bits, group, symmetric), bias)(x)
    expected = x.double() @ codes.dequantize().double().T + bias
    # The sums are float32; a result is rounded once, to the type of x.
    assert (out.double() - expected).abs().max() < (2e-6 if dtype == torch.float32 else 5e-3) * expected.abs().max()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("outs", "size"), [(100, 256), (64, 577), (33, 130), (200, 1024)])
@pytest.mark.usefixtures("codes_target")
def test_products_of_8_bits_are_exact(outs, size, dtype):
    values = torch.randint(-128, 128, (outs, size), dtype=torch.int8)
    values[0], values[1] = -128, 127  # the largest sums that there are
    codes = Codes(values, torch.rand(outs, 1) + 0.5, None)
    x = torch.randn(80, size).to(dtype)
    x[0], x[1] = 1, -1
    numbers, scale = round_rows(x)
    sums = numbers.long() @ values.long().T
    expected = sums.float() * codes.scale.T * scale
    assert torch.equal(layer_of(codes, W8A8)(x), expected.to(dtype))


def whole_numbers(rows, size):
    """Rows of x that rounding to 8 bits leaves as they are: their largest number is 127."""
    x = torch.randint(-127, 128, (rows, size)).float()
    x[:, 0] = 127
    return x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("outs", "size", "group"), [(100, 256, 32), (33, 128, 128), (7, 8, 8), (200, 1152, -1)])
@pytest.mark.usefixtures("codes_target")
def test_products_of_4_by_8_bits_are_exact(outs, size, group, dtype):
    values = torch.randint(-8, 8, (outs, size), dtype=torch.int8)
    values[0], values[1] = -8, 7  # the largest sums that there are
    codes = Codes(values, torch.ones(outs, 1 if group == -1 else size // group), None)
    x = whole_numbers(80, size)
    expected = x.long() @ values.long().T  # below 2^24: a float32 holds it
    assert torch.equal(layer_of(codes, W4A8)(x.to(dtype)), expected.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_of_4_by_8_bits_are_those_of_rounded_rows(dtype):
    codes = round_to_nearest(torch.randn(100, 256), bits=4, group_size=32, symmetric=True)
    x = torch.randn(80, 256).to(dtype)
    numbers, scale = round_rows(x)
    expected = (numbers * scale).double() @ codes.dequantize().double().T
    out = layer_of(codes, W4A8)(x)
    assert (out.double() - expected).abs().max() < (2e-6 if dtype == torch.float32 else 5e-3) * expected.abs().max()


@pytest.mark.avx512
@pytest.mark.skipif(len(DTYPES) == 1, reason="this CPU computes in float32")
@pytest.mark.parametrize("bits", [4, 8])
def test_bfloat16_is_rounded_to_16_bits_of_the_largest_number_of_its_group(bits):
    codes = round_to_nearest(torch.randn(64, 256), bits=bits, group_size=64, symmetric=False)
    x = torch.randn(20, 256).bfloat16()
    x[:, 70] = 1000.0
    weight = codes.dequantize().double()
    expected = x.double() @ weight.T
    largest = x.double().abs().unflatten(1, (4, 64)).amax(2)  # [rows, groups]
    lost = 2**-16 * largest @ weight.abs().unflatten(1, (4, 64)).sum(2).T
    assert torch.all(
        (layer_of(codes, QuantScheme("plain", bits, 64, False))(x) - expected).abs()
        < 1.01 * lost + 2**-8 * expected.abs()
    )


@pytest.mark.parametrize("scheme", [QuantScheme("plain", 4, 32, True), W4A8, W8A8], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_not_a_number_stays_so_and_in_its_row(scheme, dtype):
    codes = round_to_nearest(torch.randn(40, 64), bits=scheme.bits, group_size=scheme.group_size, symmetric=True)
    x = torch.randn(3, 64).to(dtype)
    x[1, 33] = torch.nan
    out = layer_of(codes, scheme)(x)
    assert out.isnan().all(1).tolist() == [False, True, False]
    assert not out[[0, 2]].isnan().any()


@pytest.mark.parametrize(
    "scheme", [QuantScheme("plain", 4, 32, False), QuantScheme("plain", 8, 32, True), W4A8, W8A8], ids=str
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.usefixtures("codes_target")
def test_a_rows_bits_do_not_depend_on_the_others(scheme, dtype):
    codes = round_to_nearest(
        torch.randn(100, 256), bits=scheme.bits, group_size=scheme.group_size, symmetric=scheme.symmetric
    )
    layer, x = layer_of(codes, scheme), torch.randn(80, 256).to(dtype)
    together = layer(x)
    for rows in ROWS:
        assert torch.equal(layer(x[:rows]), together[:rows]), rows
    assert torch.equal(layer(x[39:]), together[39:])


@pytest.mark.parametrize("scheme", [QuantScheme("plain", 4, 64, True), W4A8, W8A8], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_of_zeros_is_a_row_of_zeros(scheme, dtype):
    codes = Codes(torch.ones(32, 64, dtype=torch.int8), torch.ones(32, 1), None)
    assert torch.equal(layer_of(codes, scheme)(torch.zeros(2, 64, dtype=dtype)), torch.zeros(2, 32, dtype=dtype))


def test_small_weights_share_their_memory_and_give_it_back():
    memory = WeightMemory()
    first, second = memory.empty(100), memory.empty(1000)
    assert second.data_ptr() == first.data_ptr() + 128  # from the start of a cache line on
    first.fill_(1), second.fill_(2)
    assert torch.all(first == 1)
    large = memory.empty(CHUNK + 1)
    assert len(large) == CHUNK + 1
    chunk = memory._chunk
    del first, second, large
    assert chunk() is None
    assert len(memory.empty(10)) == 10


@pytest.mark.parametrize(("group", "taken"), [(128, 128), (256, 128), (576, 96), (16, 16), (12, 0), (4, 0)])
def test_a_kernel_takes_a_group_or_an_equal_part_of_it(group, taken):
    codes = Codes(torch.zeros(1, group, dtype=torch.int8), torch.ones(1, 1), None)
    assert kernel_group(codes) == taken


def test_codes_of_4_bits_take_a_quarter_of_bfloat16():
    weight = torch.randn(1024, 1024)
    layer = layer_of(round_to_nearest(weight, bits=4, group_size=128, symmetric=True), ONLINE["w4a16"])
    line, scales = 64, 4 * 1024 * 1024 // 128
    assert layer.weight.numel() == weight.numel() // 2 + scales + line


def test_the_plain_way_rounds_what_goes_in():
    codes = round_to_nearest(torch.randn(16, 32), bits=8, group_size=-1, symmetric=True)
    layer, x = Linear(32, 16), torch.randn(3, 32)
    method = QuantizedLinear(W8A8, "layer")
    method.dtype = torch.float32
    method.keep(layer, codes)
    numbers, scale = round_rows(x)
    assert torch.allclose(method.apply(layer, x), (numbers * scale) @ codes.dequantize().T, atol=1e-6)
