"""The products with tiles, where there need be no such CPU: a loop stands in for each instruction (emulated_tiles.h).

Held is what our code decides: how x and the weight lie in tiles, which tiles meet, and whose sums are whose. That the
instructions themselves are compiled is seen by their names in the assembly.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from folovllm.layers import compiled_ops
from folovllm.layers.linear import Linear
from folovllm.layers.quantization import compiled
from folovllm.layers.quantization.codes import Codes, round_to_nearest
from folovllm.layers.quantization.linear import round_rows
from folovllm.model_loader.quant_scheme import QuantScheme
from folovllm.utils import cpu_kernels
from tests.m7.test_kernels import W8A8, layer_of
from tests.m7.test_kernels import pytestmark as can_compile

pytestmark = [can_compile, pytest.mark.exhaustive]  # compiles the products anew: some 10 CPU seconds

EMULATED = Path(__file__).with_name("emulated_tiles.h")
UNITS = [cpu_kernels.SOURCES / name for name in ("linear_codes.cpp", "linear_int8.cpp", "linear_tiles.cpp", "pool.cpp")]
HAS_PAIRS = "avx512_bf16" in cpu_kernels.cpu_features()


@pytest.fixture(scope="module")
def tiles(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiles") / "tiles.so"
    target = (*cpu_kernels.NATIVE, "-O1", "-D__AMX_BF16__", "-include", str(EMULATED))
    cpu_kernels._compile(shutil.which("g++"), target, UNITS, path)
    return ctypes.CDLL(str(path))


@pytest.fixture
def emulated(tiles, monkeypatch):
    for cached in (cpu_kernels.function, compiled_ops.product_name):
        cached.cache_clear()
    for module in (compiled_ops, compiled):
        monkeypatch.setattr(module, "has_tiles", lambda: bool(tiles.has_tiles()))
    monkeypatch.setattr(cpu_kernels, "library", lambda: tiles)
    yield
    monkeypatch.undo()
    for cached in (cpu_kernels.function, compiled_ops.product_name):
        cached.cache_clear()


# 150 rows are ten blocks, for which the columns are taken in pieces of 512; up to 16 are one, by two panels.
@pytest.mark.avx512
@pytest.mark.skipif(not HAS_PAIRS, reason="its sums need AVX512-BF16")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "outs", "size"), [(1, 100, 258), (16, 33, 64), (40, 64, 577), (150, 40, 1090)])
def test_products_of_8_bits_are_exact_and_rows_apart(rows, outs, size, dtype, emulated):
    values = torch.randint(-128, 128, (outs, size), dtype=torch.int8)
    values[0], values[1] = -128, 127  # the largest sums that there are
    x = torch.randn(rows, size).to(dtype)
    x[0] = 1
    codes, (numbers, scale) = Codes(values, torch.rand(outs, 1) + 0.5, None), round_rows(x)
    layer = layer_of(codes, W8A8)
    out = layer(x)
    assert torch.equal(out, ((numbers.long() @ values.long().T).float() * codes.scale.T * scale).to(dtype))
    assert torch.equal(layer(x[-1:]), out[-1:])


@pytest.mark.avx512
@pytest.mark.skipif(not HAS_PAIRS, reason="its sums need AVX512-BF16")
@pytest.mark.parametrize(("bits", "activation_bits"), [(4, None), (8, None), (4, 8)])
@pytest.mark.parametrize(("rows", "outs", "group"), [(13, 33, 128), (40, 64, 64), (150, 40, 128)])
def test_products_with_codes_have_the_bits_of_rows_that_are_in_no_tile(
    rows, outs, group, bits, activation_bits, emulated
):
    """Up to twelve rows are in none. Some numbers are the largest ones of their group, of both signs."""
    codes = round_to_nearest(torch.randn(outs, 256), bits=bits, group_size=group, symmetric=bits == 8)
    x = torch.randn(rows, 256).bfloat16()
    x[:2] = torch.tensor([[3.0], [-3.0]])
    layer = layer_of(codes, QuantScheme("plain", bits, group, bits == 8, activation_bits))
    assert torch.equal(layer(x), torch.cat([layer(x[i : i + 1]) for i in range(rows)]))
    expected, allowed = x.double() @ codes.dequantize().double().T, 5e-3 if activation_bits is None else 3e-2
    assert (layer(x).double() - expected).abs().max() < allowed * expected.abs().max()
    x[-1, 3] = torch.inf
    torch.testing.assert_close(layer(x)[-1:], layer(x[-1:]), rtol=0, atol=0, equal_nan=True)


@pytest.mark.avx512
@pytest.mark.skipif(not HAS_PAIRS, reason="its sums need AVX512-BF16")
@pytest.mark.parametrize(("rows", "outs", "size"), [(1, 100, 258), (40, 64, 77), (150, 40, 520)])
def test_products_of_bfloat16_numbers(rows, outs, size, emulated):
    layer = Linear(size, outs, bias=False)
    weight, x = torch.randn(outs, size, dtype=torch.bfloat16), torch.randn(rows, size, dtype=torch.bfloat16)
    layer.weight.data, layer.method = weight, compiled_ops.CompiledLinear()
    layer.method.process_weights_after_loading(layer)
    assert layer.method.kernel(layer) == "bf16_tiles"
    out, expected = layer(x), x.double() @ weight.double().T
    assert (out.double() - expected).abs().max() < 5e-3 * expected.abs().max()
    assert torch.equal(layer(x[-1:]), out[-1:])


def test_the_instructions_are_compiled(tmp_path):
    target = ("-O1", "-march=sapphirerapids", "-mprefer-vector-width=512", "-S", "-o", str(tmp_path / "int8.s"))
    source = str(cpu_kernels.SOURCES / "linear_int8.cpp")
    subprocess.run(["g++", "-std=c++20", *target, source], check=True, capture_output=True)
    text = (tmp_path / "int8.s").read_text()
    assert "tdpbusd" in text
    assert "tdpbf16ps" not in text
