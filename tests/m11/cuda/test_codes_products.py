"""Products with codes and with e4m3 weights: the instructions that take two codes apart are exact, numbers of 8 bits
mean the same in every layout, and few rows are multiplied as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from folovllm import LLM
from folovllm.layers.linear import Linear
from folovllm.layers.norm import RMSNorm
from folovllm.layers.quantization.codes import FP8, Codes, round_to_e4m3, round_to_nearest
from folovllm.layers.quantization.cuda import FEW_ROWS, Fp8Linear, PlainFp8Linear, rounds_inputs
from folovllm.layers.quantization.plan import choose_plan
from folovllm.model_loader.quant_scheme import ONLINE
from folovllm.utils.gpus import Gpu
from tests.fake_cuda import FakeCuda
from tests.helpers import make_hf_folder
from tests.m4.attention_reference import KERNEL_DEVICE

pytest.importorskip("triton")
from folovllm.layers.kernels.add_rms_norm import rms_norm
from folovllm.layers.quantization.kernels import linear_codes as module
from folovllm.layers.quantization.kernels.linear_codes import linear_codes, pack_codes
from folovllm.layers.quantization.kernels.round_rows import round_rows

H200 = Gpu("nvidia", (9, 0))
EVERY_NUMBER = torch.tensor([byte for byte in range(256) if byte & 0x7F != 0x7F], dtype=torch.uint8)  # but for NaN


def halves(bits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """int64 [n], of 32 bits each -> its two numbers of 16 bits, float64 [n, 2], the lower half first."""
    numbers = torch.stack([bits & 0xFFFF, bits >> 16], 1)
    return (numbers - ((numbers & 0x8000) << 1)).to(torch.int16).view(dtype).double()


def run(asm: str, dtype: torch.dtype, *args: torch.Tensor) -> torch.Tensor:
    """What a PTX block of these few instructions leaves in $0, [n, 2]. Its one sum is not rounded here."""
    values = {f"${place}": value for place, value in enumerate(args, 1)}

    def value(name: str) -> torch.Tensor:
        return torch.full_like(args[0], int(name, 0)) if name[0].isdigit() else values[name]

    for step in re.findall(r"[a-z][\w.]+ [^;{}]+(?=;)", asm):
        operation, *names = re.split(r",? ", step)
        if operation == "reg":
            continue
        target, *sources = names
        if operation.startswith("fma"):
            a, b, c = (halves(value(name), dtype) for name in sources)
            return a * b + c
        a, *rest = map(value, sources)
        if operation == "mov.b32":
            values[target] = a
        elif operation == "and.b32":
            values[target] = a & rest[0]
        elif operation == "shr.b32":
            values[target] = a >> rest[0]
        else:
            assert (operation, sources[3]) == ("lop3.b32", "0xea")
            values[target] = (a & rest[0]) | rest[1]
    raise AssertionError(asm)


@pytest.mark.parametrize(
    ("asm", "dtype", "less"),
    [(module.CODES_BF16, torch.bfloat16, 0xC300), (module.CODES_FP16, torch.float16, 0xE400)],
)
def test_two_codes_of_4_bits_less_their_offset_are_exact(asm, dtype: torch.dtype, less: int) -> None:
    low, high, offset, rest = torch.cartesian_prod(*(torch.arange(16),) * 3, torch.tensor([0, 0xFFF])).T
    words = ((rest << 4 | high) << 16) | (rest << 4) | low
    found = run(asm.value, dtype, words, (offset + less) * 0x10001)
    assert torch.equal(found, torch.stack([low - offset, high - offset], 1).double())
    assert torch.equal(found.to(dtype).double(), found)


@pytest.mark.parametrize(("asm", "dtype"), [(module.E4M3_BF16, torch.bfloat16), (module.E4M3_FP16, torch.float16)])
def test_two_e4m3_numbers_are_exact(asm, dtype: torch.dtype) -> None:
    numbers, other = EVERY_NUMBER.long(), EVERY_NUMBER.long().flip(0)
    words = (numbers << 24) | (other << 16) | (other << 8) | numbers
    found = run(asm.value, dtype, words)
    want = torch.stack([EVERY_NUMBER.flip(0).view(FP8), EVERY_NUMBER.view(FP8)], 1).double()
    assert torch.equal(found, want)
    assert torch.equal(found.to(dtype).double(), found)
    assert torch.equal(found.signbit(), want.signbit())


def numbers_of(outs: int, size: int, group: int) -> Codes:
    numbers, scale = round_to_e4m3(torch.randn(outs, size).unflatten(1, (-1, group)))
    return Codes(numbers.flatten(1).to(KERNEL_DEVICE), scale.flatten(1).to(KERNEL_DEVICE), None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_e4m3_number(dtype: torch.dtype) -> None:
    """x picks the columns one by one: no sum, so nothing is rounded."""
    numbers = EVERY_NUMBER.view(FP8)[None].to(KERNEL_DEVICE)
    codes = Codes(numbers.repeat(2, 1), torch.full((2, 1), 0.5, device=KERNEL_DEVICE), None)
    picks = torch.eye(len(EVERY_NUMBER), device=KERNEL_DEVICE)[::7].to(dtype)
    for by_outputs in (False, True):
        got = linear_codes(picks, pack_codes(codes, 8, by_outputs=by_outputs))
        assert torch.equal(got.float(), codes.dequantize().T[::7])


@pytest.mark.parametrize(("outs", "size", "group"), [(40, 256, 128), (33, 192, 64), (16, 144, 16), (20, 200, 200)])
@pytest.mark.parametrize("by_outputs", [False, True])
def test_products_with_e4m3(outs: int, size: int, group: int, by_outputs: bool) -> None:
    codes = numbers_of(outs, size, group)
    packed, bias = pack_codes(codes, 8, by_outputs=by_outputs), torch.randn(outs, device=KERNEL_DEVICE)
    for rows, invariant in ((1, False), (20, False), (3, True)):
        x = torch.randn(rows, size, device=KERNEL_DEVICE)
        want = x.double() @ codes.dequantize().double().T + bias.double()
        got = linear_codes(x, packed, bias, invariant=invariant).double()
        torch.testing.assert_close(got, want, atol=1e-5 * float(want.abs().max()), rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "size"), [(3, 300), (20, 300), (3, 1100)], ids=["few", "more", "split"])
@pytest.mark.parametrize("bits", [4, 8])
def test_swiglu_residual_and_norm_are_those_of_float64(dtype: torch.dtype, rows: int, size: int, bits: int) -> None:
    """8 bits: e4m3. Of sizes that are no whole number of lines or tiles."""
    codes = numbers_of(140, size, size)
    if bits == 4:
        codes = round_to_nearest(torch.randn(140, size, device=KERNEL_DEVICE), bits=4, group_size=-1, symmetric=False)
    packed, bias, weight = pack_codes(codes, bits), *torch.randn(2, 140, device=KERNEL_DEVICE).to(dtype)
    x, stream = (torch.randn(rows, columns, device=KERNEL_DEVICE).to(dtype) for columns in (size, 140))
    norm = RMSNorm(140, 1e-6, rms_norm)
    norm.weight.data = weight
    want = x.double() @ codes.dequantize().double().T + bias.double()
    gate, up = want.chunk(2, dim=1)
    want = want + stream.double()
    gated, normed = linear_codes(x, packed, bias, gated=True), linear_codes(x, packed, bias, into=(norm, stream))
    of_want = F.rms_norm(want, (140,), weight.double(), 1e-6)
    for got, exact in ((gated, F.silu(gate) * up), (normed, of_want), (stream, want)):
        assert got.dtype == dtype
        atol = (1e-5 if dtype == torch.float32 else 2**-6) * float(exact.abs().max())
        torch.testing.assert_close(got.double(), exact, atol=atol, rtol=0)


@pytest.mark.parametrize("size", [128, 200])
def test_a_rounded_row_and_the_weight_have_their_columns_in_the_same_order(size: int) -> None:
    codes = numbers_of(16, size, size)
    words = pack_codes(codes, 8, by_outputs=True).words.transpose(0, 1)
    assert words.is_contiguous()
    x = codes.values.float()  # its rows are rounded to themselves
    x[:, 0] = 448
    numbers, scale = round_rows(x, FP8, in_lines=True)
    assert scale.eq(1).all()
    weight, same = words.flatten(1).view(torch.uint8), numbers.view(torch.uint8) == words.flatten(1).view(torch.uint8)
    assert weight.shape == numbers.shape == (16, 128 if size == 128 else 256)
    assert same[:, 1:].all()  # but for the column that sets the scale


def made(method: Fp8Linear | PlainFp8Linear, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    layer = Linear(weight.shape[1], len(weight), method=method)
    method.dtype = x.dtype
    layer.weight.data = weight.to(KERNEL_DEVICE)
    method.process_weights_after_loading(layer)
    return layer(x)


@pytest.mark.exhaustive
def test_few_rows_are_multiplied_as_they_are_and_many_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    if KERNEL_DEVICE == "cpu":  # where torch has no scales by row
        monkeypatch.setattr("folovllm.layers.quantization.cuda.scales_rows", lambda device: False)
    weight = torch.randn(32, 200)
    numbers, scale = round_to_e4m3(weight)
    meant = (numbers.float() * scale).double().to(KERNEL_DEVICE)
    for rows in (FEW_ROWS, FEW_ROWS + 1):
        x = torch.randn(rows, 200, device=KERNEL_DEVICE).bfloat16()
        ours, plain = (made(method(ONLINE["fp8"], "layer"), weight, x) for method in (Fp8Linear, PlainFp8Linear))
        error = (ours.double() - x.double() @ meant.T).norm() / ours.double().norm()
        assert (error < 5e-3) == (rows == FEW_ROWS)  # a rounded input is off by 2e-2
        torch.testing.assert_close(ours, plain, atol=0.1, rtol=2e-2)


@pytest.mark.parametrize(
    ("dtype", "gpu", "invariant", "rounds"),
    [
        (torch.bfloat16, H200, False, True), (torch.float16, Gpu("nvidia", (8, 9)), False, True),
        (torch.float32, H200, False, False), (torch.bfloat16, H200, True, False),
        (torch.bfloat16, Gpu("nvidia", (8, 0)), False, False), (torch.bfloat16, Gpu("amd", (9, 4)), False, False),
    ],
)  # fmt: skip
def test_no_input_is_rounded_where_a_batch_must_not_matter(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, gpu: Gpu, invariant: bool, rounds: bool
) -> None:
    monkeypatch.setattr("folovllm.layers.quantization.cuda.gpu_of", lambda device: gpu)
    assert rounds_inputs(dtype, torch.device("cuda"), invariant=invariant) is rounds


def test_a_tile_for_32_rows_and_half_of_the_tensor_memory() -> None:
    plan = choose_plan(32, 1024, 12, 2, invariant=False, small=False)
    assert (plan.rows, plan.outs) == (32, 64)
    assert choose_plan(300, 1024, 12, 2, invariant=False, small=False).outs == 128
    assert choose_plan(300, 1024, 12, 2, invariant=False, small=False, tensor_memory=True).outs == 64


def test_wide_weights_of_many_lines_are_split_where_there_are_few_rows() -> None:
    """4,096 outputs are 64 programs, as in Qwen3-8B's o and down. More rows keep the tiles that they had."""

    def splits(rows: int, lines: int) -> int:
        return choose_plan(rows, 4096, lines, 2, invariant=False, small=False).splits

    assert [splits(rows, lines) for rows in (1, 16) for lines in (16, 48)] == [2, 2, 2, 2]
    assert (splits(16, 15), splits(17, 48)) == (1, 1)


def test_groups_that_a_gpu_multiplies_wrongly_are_refused(
    tmp_path: Path, fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """48 columns are three groups of 16."""
    folder = make_hf_folder(tmp_path, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (8, 0))
    with pytest.raises(
        ValueError, match="down_proj has codes of 4 bits in groups of 16, with which this GPU's kernel would"
    ):
        LLM(str(folder), device="cuda", quantization="w4a16", skip_tokenizer_init=True, max_model_len=16)
