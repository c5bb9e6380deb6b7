"""linear_codes: y = x @ weight.T + bias with a weight of 4- or 8-bit codes, which is taken apart inside of the kernel.

    weight[o, k] = (code[o, k] - offset[o, g]) * scale[o, g]       g = k // group, code in [0, 16) or [0, 256)

The columns of a sum may come in any order, so the codes lie in the order that costs least. A row is cut into pieces of
32 columns. The pieces of a line, 8 of 4 bits or 4 of 8 bits, lie in the same 32 words, one above the other: shifted by
n * bits, the words are piece n, and nothing is moved between threads.

    32 words of an output    word 0    k=224 .. k=64 k=32 k=0        8 codes of 4 bits, the lowest bits to the right
                             word 1    k=225 .. k=65 k=33 k=1
                             ..                          '- piece 0
    memory    [lines, outputs, 32]     a program's outputs side by side: one stretch for each line

A code less its offset is a small integer, which bfloat16 holds exactly. So the matrix units multiply integers, in one
sum for each group, and the sum is multiplied by the group's scale in float32. Nothing is rounded before the result.

Where the lines are dealt out to several programs (plan.py), each writes its sums, and a second kernel adds them in
their order: no atomics, the same bits every time.

vLLM: model_executor/layers/quantization/awq_triton.py, model_executor/kernels/linear/mixed_precision/
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from folovllm.layers.quantization.codes import Codes
from folovllm.layers.quantization.plan import choose_plan
from folovllm.utils.dependent_launch import dependent_launch, wait_for_kernel_before
from folovllm.utils.gpus import gpu_of

INTERPRETED: bool = triton.knobs.runtime.interpret
GROUPS = (128, 64, 32, 16)
"""Columns that share a scale, as the kernel knows them. A larger group is several that are alike."""
COLUMNS = 1024  # of a program that adds splits up


class PackedCodes(NamedTuple):
    words: torch.Tensor
    """int32 [lines, outs, columns of a piece]"""
    scale: torch.Tensor
    """float32 [groups, outs]"""
    offset: torch.Tensor
    """uint8 [groups, outs]"""
    bits: int
    group: int
    in_features: int


def kernel_group(codes: Codes) -> int:
    """Of GROUPS; 0: none divides the weight's own. One group for a whole row may end inside of a kernel's."""
    if codes.scale.shape[1] == 1:
        return GROUPS[0]
    return next((size for size in GROUPS if codes.group_size % size == 0), 0)


def pack_codes(codes: Codes, bits: int) -> PackedCodes:
    """A row is filled up to whole lines."""
    group, numbers, half, size = kernel_group(codes), 32 // bits, 2 ** (bits - 1), codes.values.shape[1]
    piece = min(group, 32)
    lines = -(-size // (numbers * piece))
    columns = lines * numbers * piece
    # [outs, lines, pieces of a line, columns of a piece]
    values = F.pad(codes.values.int() + half, (0, columns - size)).view(-1, lines, numbers, piece)
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=values.device)[:, None]
    words = (values << shifts).sum(2, dtype=torch.int32).transpose(0, 1).contiguous()
    zero = torch.zeros_like(codes.scale) if codes.zero is None else codes.zero.float()
    again = -(-codes.group_size // group)

    def of_groups(numbers: torch.Tensor) -> torch.Tensor:
        rows = numbers.T.repeat_interleave(again, 0, output_size=again * numbers.shape[1])
        return F.pad(rows, (0, 0, 0, -(-columns // group) - len(rows))).contiguous()

    return PackedCodes(words, of_groups(codes.scale), of_groups(zero + half).to(torch.uint8), bits, group, size)


@triton.jit
def _numbers(words, offset, PLACE: tl.constexpr, BITS: tl.constexpr):
    """The codes at bit PLACE of words [outputs, columns], at most 15, less their offset [outputs], in float32.

    A float of 2^23 has no bits behind the point: with a code among its bits it is 2^23 + code * 2^PLACE. To multiply
    and to subtract is one instruction then, and exact. A conversion would be one of which a multiprocessor makes few.
    """
    number = ((words & (((1 << BITS) - 1) << PLACE)) | 0x4B000000).to(tl.float32, bitcast=True)
    return number * (1.0 / (1 << PLACE)) - (offset + 8388608.0 / (1 << PLACE))[:, None]


@triton.jit
def _add_line(
    acc, line, words_at, scale_at, offset_at, x_at, in_features, out_features,
    BITS: tl.constexpr, GROUP: tl.constexpr, PIECE: tl.constexpr, EVEN: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """acc [outputs, rows] with what a line's columns add to it. The places are those of line 0."""
    NUMBERS: tl.constexpr = 32 // BITS
    TOGETHER: tl.constexpr = min(GROUP // PIECE, NUMBERS)  # pieces of a line that share a scale
    HALF: tl.constexpr = NUMBERS // 2
    low = tl.load(words_at + line * (out_features * PIECE))  # below 2^31: 8 GiB of words
    high = low >> 16
    for part in tl.static_range(NUMBERS // TOGETHER):
        first = line * NUMBERS + part * TOGETHER
        group = first * PIECE // GROUP * out_features
        scale, offset = tl.load(scale_at + group), tl.load(offset_at + group).to(tl.float32)
        total = tl.zeros([acc.shape[0], acc.shape[1]], tl.float32)
        for n in tl.static_range(TOGETHER):
            column = (first + n) * PIECE
            if EVEN:
                x = tl.load(x_at + column)  # [columns, rows]
            else:
                x = tl.load(x_at + column, mask=(column + tl.arange(0, PIECE) < in_features)[:, None], other=0.0)
            words = low if part * TOGETHER + n < HALF else high
            weight = _numbers(words, offset, (part * TOGETHER + n) % HALF * BITS, BITS)
            if INTERPRETED:  # its products take the raw bits of bfloat16
                x = x.to(tl.float32)
            total = tl.dot(weight.to(x.dtype), x, total, input_precision="ieee")
        acc += total * scale[:, None]
    return acc


@triton.jit(do_not_specialize=["num_rows", "num_lines", "lines_each"])
def _linear_codes_kernel(
    x_ptr, words_ptr, scale_ptr, offset_ptr, bias_ptr, out_ptr, num_rows, num_lines, lines_each, in_features,
    out_features, stride_x, BITS: tl.constexpr, GROUP: tl.constexpr, PIECE: tl.constexpr, EVEN: tl.constexpr,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, INTERPRETED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_kernel_before(DEPENDENT)
    # Programs that follow one another share their outputs: a line comes from memory once, and then from the L2 cache.
    row_tiles = tl.cdiv(num_rows, BLOCK_M)
    rows = tl.program_id(0) % row_tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) // row_tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    # What is behind the last row or output reads that one again: its result is not stored.
    row, column = tl.minimum(rows, num_rows - 1).to(tl.int64), tl.minimum(columns, out_features - 1)
    lane = tl.arange(0, PIECE)
    x_at = x_ptr + (row * stride_x)[None, :] + lane[:, None]
    words_at = words_ptr + (column * PIECE)[:, None] + lane[None, :]
    scale_at, offset_at = scale_ptr + column, offset_ptr + column
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    start = tl.program_id(1) * lines_each
    end = tl.minimum(start + lines_each, num_lines)
    for line in range(start, end):  # not `while`, in which Triton would fetch no lines ahead
        acc = _add_line(
            acc, line, words_at, scale_at, offset_at, x_at, in_features, out_features,
            BITS, GROUP, PIECE, EVEN, INTERPRETED,
        )  # fmt: skip
    if HAS_BIAS:
        acc += tl.load(bias_ptr + column).to(tl.float32)[:, None]
    out_rows = tl.program_id(1).to(tl.int64) * num_rows + rows
    out_at = out_ptr + (out_rows * out_features)[None, :] + columns[:, None]
    exists = (rows < num_rows)[None, :] & (columns < out_features)[:, None]
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=exists)


@triton.jit(do_not_specialize=["num_rows"])
def _add_splits_kernel(
    sums_ptr, bias_ptr, out_ptr, num_rows, out_features, SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr,
    COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_kernel_before(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    exists = columns < out_features
    total = tl.zeros([COLUMNS], tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(sums_ptr + (split * num_rows + row) * out_features + columns, mask=exists, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias_ptr + columns, mask=exists, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * out_features + columns, total.to(out_ptr.dtype.element_ty), mask=exists)


def linear_codes(
    x: torch.Tensor, packed: PackedCodes, bias: torch.Tensor | None = None, *, invariant: bool = False
) -> torch.Tensor:
    """y [num_rows, outs], of x's dtype, of x [num_rows, in_features].

    Raises:
        ValueError: x is not contiguous inside a row, or has not as many columns as the weight.
    """
    (num_lines, outs, piece), num_rows = packed.words.shape, len(x)
    if x.shape[1:] != (packed.in_features,) or x.stride(1) != 1:
        raise ValueError(
            f"x must be [rows, {packed.in_features}] and contiguous inside a row, got {list(x.shape)} with strides "
            f"{x.stride()}"
        )
    out = torch.empty(num_rows, outs, dtype=x.dtype, device=x.device)
    if not num_rows:
        return out
    gpu = gpu_of(x.device)
    plan = choose_plan(num_rows, outs, num_lines, x.element_size(), invariant=invariant, small=gpu.has_small_tiles)
    split, launch = plan.splits > 1, dependent_launch(x.device)
    sums = torch.empty(plan.splits, num_rows, outs, dtype=torch.float32, device=x.device) if split else out
    grid = (triton.cdiv(num_rows, plan.rows) * triton.cdiv(outs, plan.outs), plan.splits)
    _linear_codes_kernel[grid](
        x, packed.words, packed.scale, packed.offset, sums if split or bias is None else bias, sums, num_rows,
        num_lines, triton.cdiv(num_lines, plan.splits), packed.in_features, outs, x.stride(0),
        BITS=packed.bits, GROUP=packed.group, PIECE=piece,
        EVEN=packed.in_features == num_lines * piece * 32 // packed.bits,
        HAS_BIAS=bias is not None and not split, BLOCK_M=plan.rows, BLOCK_N=plan.outs,
        INTERPRETED=INTERPRETED, **launch, num_warps=plan.warps, num_stages=gpu.stages(plan.stages),
    )  # fmt: skip
    if split:
        _add_splits_kernel[(num_rows, triton.cdiv(outs, COLUMNS))](
            sums, sums if bias is None else bias, out, num_rows, outs, SPLITS=plan.splits, HAS_BIAS=bias is not None,
            COLUMNS=COLUMNS, **launch, num_warps=4,
        )  # fmt: skip
    return out
