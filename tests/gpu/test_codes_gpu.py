"""Products with quantised weights at a model's size, on the GPU: against float64, in a graph, in an engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from folovllm.layers.linear import Linear
from folovllm.layers.quantization.codes import Codes, round_to_nearest
from folovllm.layers.quantization.cuda import FEW_ROWS, Fp8Linear, Int8Linear, round_to_e4m3
from folovllm.layers.quantization.linear import round_rows as round_by_torch
from folovllm.model_loader.quant_scheme import ONLINE
from tests.gpu.places import Place, on_every_place
from tests.gpu.test_fp8_gpu import check_engine

pytest.importorskip("triton")
from folovllm.layers.quantization.kernels.linear_codes import linear_codes, pack_codes


@pytest.fixture(autouse=True)
def new_enough() -> None:
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU multiplies no e4m3")


def on(codes: Codes, device: str) -> Codes:
    zero = None if codes.zero is None else codes.zero.to(device)
    return Codes(codes.values.to(device), codes.scale.to(device), zero)


@on_every_place
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_products_with_codes(dtype: torch.dtype, bits: int, place: Place) -> None:
    sizes = [(1024, 3072, 128), (6144, 1024, 128), (1024, 2048, 32), (100, 576, -1)] if place.full else [(20, 96, 32)]
    for outs, size, group in sizes:
        codes = round_to_nearest(torch.randn(outs, size), bits=bits, group_size=group, symmetric=False)
        codes = on(codes, place.device)
        packed = pack_codes(codes, bits)
        for rows in (1, 16, 17, 32, 256, 300, 2048) if place.full else (1, 17):
            x = torch.randn(rows, size, device=place.device).to(dtype)
            want = x.double() @ codes.dequantize().double().T
            for invariant in (False, True):
                got = linear_codes(x, packed, invariant=invariant)
                error = ((got.double() - want).norm() / want.norm()).item()
                assert error < (1e-5 if dtype == torch.float32 else 4e-3), (outs, size, rows, invariant)


@on_every_place
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("by_outputs", [False, True])
def test_products_with_e4m3_in_blocks(dtype: torch.dtype, by_outputs: bool, place: Place) -> None:
    for outs, size in [(1024, 3072), (6144, 1024), (100, 576)] if place.full else [(20, 192)]:
        numbers, scale = round_to_e4m3(torch.randn(outs, size).unflatten(1, (-1, 64)))
        codes = on(Codes(numbers.flatten(1), scale.flatten(1), None), place.device)
        packed = pack_codes(codes, 8, by_outputs=by_outputs)
        for rows in (1, 16, 32, 64, 256, 300, 2048) if place.full else (1, 17):
            x = torch.randn(rows, size, device=place.device).to(dtype)
            want = x.double() @ codes.dequantize().double().T
            error = ((linear_codes(x, packed).double() - want).norm() / want.norm()).item()
            assert error < (1e-5 if dtype == torch.float32 else 4e-3), (outs, size, rows)


@on_every_place
def test_every_code_is_taken_apart_exactly(place: Place) -> None:
    """x picks the columns one by one: no sum, so nothing is rounded."""
    every = torch.tensor([byte for byte in range(256) if byte & 0x7F != 0x7F], dtype=torch.uint8)
    numbers = Codes(every.view(torch.float8_e4m3fn)[None].repeat(16, 1), torch.full((16, 1), 0.5), None)
    zero = torch.arange(-8, 8, dtype=torch.int8)[:, None]
    small = Codes(torch.arange(-8, 8, dtype=torch.int8).repeat(16, 1), torch.full((16, 1), 0.5), zero)
    for codes, bits in ((on(numbers, place.device), 8), (on(small, place.device), 4)):
        for dtype in (torch.bfloat16, torch.float16):
            picks = torch.eye(codes.values.shape[1], dtype=dtype, device=place.device)
            assert torch.equal(linear_codes(picks, pack_codes(codes, bits)).float(), codes.dequantize().T)


@on_every_place
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_rows_bits_depend_on_the_row_alone(dtype: torch.dtype, place: Place) -> None:
    outs, size = (1024, 3072) if place.full else (20, 64)
    codes = round_to_nearest(torch.randn(outs, size), bits=4, group_size=32, symmetric=True)
    packed, x = pack_codes(on(codes, place.device), 4), torch.randn(300, size, device=place.device).to(dtype)
    if not place.full:  # the interpreter's products are a BLAS's, which sums by the place in a tile
        x = x[:1]
    together = linear_codes(x, packed, invariant=True)
    for count in (1, 2, 17, 31, 33, 299) if place.full else (1,):
        assert torch.equal(linear_codes(x[:count], packed, invariant=True), together[:count]), count


def made(method: Int8Linear | Fp8Linear, weight: torch.Tensor) -> Linear:
    layer = Linear(weight.shape[1], len(weight), method=method)
    layer.weight.data = weight
    method.process_weights_after_loading(layer)
    return layer


@on_every_place
@pytest.mark.parametrize("rows", [1, 16, 17, 300])
def test_products_of_int8(rows: int, place: Place) -> None:
    outs, size = (1024, 3072) if place.full else (32, 64)
    weight, x = (torch.randn(count, size, device=place.device) for count in (outs, rows))
    x = x.bfloat16()
    codes = round_to_nearest(weight, bits=8, group_size=-1, symmetric=True)
    numbers, scale = (each.to(place.device) for each in round_by_torch(x.cpu()))  # where torch divides to the last bit
    sums = (numbers.double() @ codes.values.double().T).float()  # exact: whole numbers below 2^53
    got = made(Int8Linear(ONLINE["w8a8"], "layer"), weight)(x)
    assert torch.equal(got, (sums * codes.scale.T * scale).bfloat16())


@on_every_place
@pytest.mark.parametrize("rows", [1, 64, 65, 300])
def test_products_of_e4m3(rows: int, place: Place) -> None:
    if place.device == "cpu" and torch.__version__ < "2.12":
        pytest.skip(f"torch {torch.__version__} has no scales by row on a CPU")
    outs, size = (1024, 3072) if place.full else (32, 64)
    weight, x = (torch.randn(count, size, device=place.device) for count in (outs, rows))
    x = x.bfloat16()
    (left, left_scale), (right, right_scale) = round_to_e4m3(x), round_to_e4m3(weight)
    want = (x.double() if rows <= FEW_ROWS else left.double() * left_scale) @ (right.double() * right_scale).T
    got = made(Fp8Linear(ONLINE["fp8"], "layer"), weight)(x)
    assert ((got.double() - want).norm() / want.norm()).item() < 5e-3


@on_every_place
@pytest.mark.parametrize("quantization", ["w4a16", "w8a8"])
def test_an_engine_says_what_it_says_on_a_cpu(tmp_path: Path, quantization: str, place: Place) -> None:
    check_engine(tmp_path, place, quantization=quantization)
