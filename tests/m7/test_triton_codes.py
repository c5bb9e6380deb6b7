"""The Triton products with codes against float64 on the weights that the codes mean, and the rounding of rows against
torch's: interpreted where there is no GPU."""

from __future__ import annotations

import pytest
import torch

from folovllm.attention.backends.triton import kernels_unavailable_reason
from folovllm.attention.splits import SMS
from folovllm.layers.quantization.codes import Codes, round_to_nearest
from folovllm.layers.quantization.cuda import round_to_e4m3
from folovllm.layers.quantization.linear import round_rows as round_by_torch
from folovllm.layers.quantization.plan import MOST_ROWS, choose_plan
from tests.helpers import some
from tests.m4.attention_reference import KERNEL_DEVICE

if (reason := kernels_unavailable_reason(KERNEL_DEVICE)) is not None:
    pytest.skip(f"Triton kernels: {reason}", allow_module_level=True)

from folovllm.layers.quantization.kernels import linear_codes as module
from folovllm.layers.quantization.kernels.linear_codes import GROUPS, kernel_group, pack_codes
from folovllm.layers.quantization.kernels.round_rows import round_rows

# Of the largest number: float32 sums, rounded once to the type of x. The interpreter cuts off what does not fit.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}
pytestmark = pytest.mark.slow  # interpreted: some seconds
interpreted = pytest.mark.skipif(KERNEL_DEVICE.type == "cuda", reason="which GPUs can is asked of them elsewhere")


def make_codes(outs: int, size: int, *, bits: int, group: int, symmetric: bool) -> Codes:
    codes = round_to_nearest(torch.randn(outs, size), bits=bits, group_size=group, symmetric=symmetric)
    codes.values[0, :: size - 1] = -(2 ** (bits - 1))  # the ends of the range, in the first and the last column
    codes.values[-1, :: size - 1] = 2 ** (bits - 1) - 1
    zero = None if codes.zero is None else codes.zero.to(KERNEL_DEVICE)
    return Codes(codes.values.to(KERNEL_DEVICE), codes.scale.to(KERNEL_DEVICE), zero)


def multiply(codes: Codes, bits: int, x: torch.Tensor, *, invariant: bool = False) -> None:
    bias = torch.randn(len(codes.values), device=x.device).to(x.dtype)
    got = module.linear_codes(x, pack_codes(codes, bits), bias, invariant=invariant)
    want = x.double() @ codes.dequantize().double().T + bias.double()
    assert got.dtype == x.dtype
    torch.testing.assert_close(got.double(), want, atol=TOLERANCE[x.dtype] * float(want.abs().max()), rtol=0)


def rows_of(count: int, size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, size, device=KERNEL_DEVICE).to(dtype)


@pytest.mark.parametrize("bits", [4, 8])
def test_every_code_with_every_zero(bits: int) -> None:
    """A row for each zero, a column for each code; x picks the columns one by one: no sum, so nothing is rounded."""
    count, low = 2**bits, -(2 ** (bits - 1))
    wanted = torch.arange(low, -low, dtype=torch.int8, device=KERNEL_DEVICE)
    columns = max(count, 16)
    values = wanted.repeat(columns // count * count, 1)[:count]
    zero = wanted[:, None].repeat(1, columns // 16)
    codes = Codes(values, torch.full_like(zero, 0.5, dtype=torch.float32), zero)
    picks = torch.eye(columns, device=KERNEL_DEVICE)[:: max(1, count // 16)]
    for dtype in (torch.float32, torch.bfloat16):
        got = module.linear_codes(picks.to(dtype), pack_codes(codes, bits))
        assert torch.equal(got.float(), codes.dequantize().T[:: max(1, count // 16)])


@pytest.mark.parametrize(
    ("outs", "size", "group"),
    [(40, 256, 32), (16, 576, -1), (33, 128, 128), (10, 192, 64), (7, 16, 16), (16, 512, 256), (20, 100, -1)],
)
@pytest.mark.parametrize(
    ("bits", "symmetric", "dtype"),
    some(
        [(4, False, torch.bfloat16), (8, True, torch.float16), (4, True, torch.float32), (8, False, torch.float32)],
        kept=2,
    ),
)
def test_products_with_codes(bits: int, symmetric: bool, dtype: torch.dtype, outs: int, size: int, group: int) -> None:
    codes = make_codes(outs, size, bits=bits, group=group, symmetric=symmetric)
    for count in (1, 19):
        multiply(codes, bits, rows_of(count, size, dtype))
    multiply(codes, bits, rows_of(5, size, dtype), invariant=True)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 65, 257])
def test_any_number_of_rows(count: int) -> None:
    """And rows that are strided, as the outputs of one half of a product are."""
    codes = make_codes(40, 64, bits=4, group=32, symmetric=False)
    x = rows_of(count, 128)[:, :64]
    if count:
        multiply(codes, 4, x)
    else:
        assert module.linear_codes(x, pack_codes(codes, 4)).shape == (0, 40)


@interpreted
def test_splits_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five lines in two splits, so that the last has fewer."""
    codes = make_codes(20, 5 * 256, bits=4, group=128, symmetric=True)
    plans = []

    def plan(*args, **kwargs):
        plans.append(choose_plan(*args, **kwargs))
        return plans[-1]

    monkeypatch.setattr(module, "choose_plan", plan)
    for count in (2, 18):
        multiply(codes, 4, rows_of(count, 5 * 256))
    multiply(codes, 4, rows_of(2, 5 * 256), invariant=True)
    assert [plan.splits for plan in plans] == [2, 2, 1]


@pytest.mark.usefixtures("fixed_order")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_rows_bits_depend_on_the_row_alone_where_that_is_asked_for(dtype: torch.dtype) -> None:
    packed, x = pack_codes(make_codes(40, 256, bits=4, group=64, symmetric=False), 4), rows_of(40, 256, dtype)
    together = module.linear_codes(x, packed, invariant=True)
    for count in (1, 2, 31, 33):
        assert torch.equal(module.linear_codes(x[:count], packed, invariant=True), together[:count]), count
        assert torch.equal(module.linear_codes(x[40 - count :], packed, invariant=True), together[40 - count :]), count


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize(("outs", "lines"), [(1024, 4), (1024, 12), (4096, 4), (6144, 4), (28672, 16), (16, 1)])
def test_a_plan_is_the_same_for_all_numbers_of_rows_of_a_kind(outs: int, lines: int, small: bool) -> None:
    """So that what is compiled for one number of each kind serves the others."""
    for fewer, most in zip((0, *MOST_ROWS), (*MOST_ROWS, 8192), strict=True):
        kind = (fewer + 1, (fewer + 1 + most) // 2, most)
        plans = {choose_plan(rows, outs, lines, 2, invariant=False, small=small) for rows in kind}
        (plan,) = plans
        assert plan.splits == 1 or plan.splits * -(-outs // plan.outs) <= SMS
        assert plan.splits <= max(1, lines // 2)
    assert {choose_plan(rows, outs, lines, 2, invariant=True, small=small) for rows in (1, 17, 257)} == {
        choose_plan(1, outs, lines, 2, invariant=True, small=small)
    }


@pytest.mark.parametrize(
    ("size", "groups", "taken"), [(512, 2, 128), (192, 2, 32), (96, 6, 16), (48, 2, 0), (50, 1, 128)]
)
def test_a_kernels_group_divides_the_weights_own(size: int, groups: int, taken: int) -> None:
    codes = Codes(torch.zeros(1, size, dtype=torch.int8), torch.ones(1, groups), None)
    assert kernel_group(codes) == taken
    assert taken in (0, *GROUPS)


def test_codes_of_4_bits_take_a_quarter_of_bfloat16() -> None:
    packed = pack_codes(make_codes(64, 1024, bits=4, group=128, symmetric=True), 4)
    assert packed.words.numel() * 4 == 64 * 1024 // 2
    assert packed.scale.numel() * 4 + packed.offset.numel() == 64 * 8 * 5


@pytest.mark.parametrize("x", [torch.zeros(2, 65), torch.zeros(64, 2).T], ids=["too wide", "strided"])
def test_another_shape_is_refused(x: torch.Tensor) -> None:
    packed = pack_codes(make_codes(16, 64, bits=4, group=32, symmetric=True), 4)
    with pytest.raises(
        ValueError, match=r"^x must be \[rows, 64\] and contiguous inside a row, got \[2, 6[45]\] with s"
    ):
        module.linear_codes(x.to(KERNEL_DEVICE), packed)


# Rounding rows.


def test_rows_are_rounded_to_int8_as_torch_rounds_them() -> None:
    x = rows_of(9, 100) * torch.logspace(-3, 3, 9, device=KERNEL_DEVICE)[:, None]
    x[3] = 0
    x[4, :3] = torch.tensor([127.0, 0.5, 1.5], device=KERNEL_DEVICE)  # ties go to the even neighbour
    x[4, 3:] = 0
    for dtype in (torch.float32, torch.bfloat16):
        codes, scale = round_rows(x.to(dtype), torch.int8)
        numbers, want = round_by_torch(x.to(dtype))
        assert torch.equal(scale, want)
        assert torch.equal(codes.float(), numbers)


def test_rows_are_rounded_to_e4m3_as_torch_rounds_them() -> None:
    x = rows_of(9, 100) * torch.logspace(-3, 3, 9, device=KERNEL_DEVICE)[:, None]
    x[3] = 0
    codes, scale = round_rows(x, torch.float8_e4m3fn)
    numbers, want = round_to_e4m3(x)
    assert torch.equal(scale, want)
    assert torch.equal(codes.view(torch.uint8), numbers.view(torch.uint8))


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_a_row_that_broke_is_seen_in_its_scale(dtype: torch.dtype, broken: float) -> None:
    x = rows_of(3, 40)
    x[1, 7] = broken
    _, scale = round_rows(x, dtype)
    assert scale.isfinite()[:, 0].tolist() == [True, False, True]
