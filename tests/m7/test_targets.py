"""The products with codes as compiled for other CPUs: with AVX2 only, with AVX-512 and no VNNI, without AMX."""

from __future__ import annotations

import pytest
import torch

from folovllm.layers import compiled_ops
from folovllm.layers.quantization import compiled
from folovllm.layers.quantization.codes import Codes, round_to_nearest
from folovllm.layers.quantization.linear import round_rows
from folovllm.quant_scheme import QuantScheme
from folovllm.utils import cpu_kernels
from tests.m4.cpu_target import CACHED, TARGETS
from tests.m7.test_kernels import ROWS, W4A8, W8A8, layer_of, whole_numbers
from tests.m7.test_kernels import pytestmark as can_compile

pytestmark = [can_compile, pytest.mark.exhaustive]  # each target is compiled: some 10 CPU seconds

TARGETS = dict(TARGETS)
if "avx512f" in cpu_kernels._cpu_features():
    TARGETS["AVX-512, no VNNI"] = ("-march=skylake-avx512", "-mprefer-vector-width=512")


@pytest.fixture(params=list(TARGETS), autouse=True)
def target(request, monkeypatch):
    for cached in CACHED:
        cached.cache_clear()
    for module in (cpu_kernels, compiled_ops, compiled):
        monkeypatch.setattr(module, "library", lambda: cpu_kernels._load(TARGETS[request.param]))
    yield
    for cached in CACHED:
        cached.cache_clear()


def assert_rows_are_apart(layer, x):
    together = layer(x)
    for rows in ROWS:
        assert torch.equal(layer(x[:rows]), together[:rows]), rows
    return together


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("bits", [4, 8])
def test_products_with_codes(bits, symmetric):
    codes = round_to_nearest(torch.randn(100, 256), bits=bits, group_size=32, symmetric=symmetric)
    x = torch.randn(80, 256)
    out = assert_rows_are_apart(layer_of(codes, QuantScheme("plain", bits, 32, symmetric)), x)
    expected = x.double() @ codes.dequantize().double().T
    assert (out - expected).abs().max() < 2e-6 * expected.abs().max()


def test_products_of_8_bits_are_exact():
    values = torch.randint(-128, 128, (100, 258), dtype=torch.int8)
    values[0], values[1] = -128, 127  # the largest sums that there are
    x = torch.randn(80, 258)
    x[0], x[1] = 1, -1
    codes, (numbers, scale) = Codes(values, torch.rand(100, 1) + 0.5, None), round_rows(x)
    expected = (numbers.long() @ values.long().T).float() * codes.scale.T * scale
    assert torch.equal(assert_rows_are_apart(layer_of(codes, W8A8), x), expected)


def test_products_of_4_by_8_bits_are_exact():
    values = torch.randint(-8, 8, (100, 256), dtype=torch.int8)
    values[0], values[1] = -8, 7  # the largest sums that there are
    x, codes = whole_numbers(80, 256), Codes(values, torch.ones(100, 8), None)
    expected = (x.long() @ values.long().T).float()
    assert torch.equal(assert_rows_are_apart(layer_of(codes, W4A8), x), expected)
