"""linear_codes: y = x @ weight.T + bias with a weight of 4- or 8-bit codes, which is taken apart inside of the kernel.

    weight[o, k] = (code[o, k] - offset[o, g]) * scale[o, g]       g = k // group, code in [0, 16) or [0, 256)
    weight[o, k] = code[o, k] * scale[o, g]                        an e4m3 number

The columns of a sum may come in any order, so the codes lie in the order that costs least. A row is cut into pieces of
64 columns. The pieces of a line, 4 of 4 bits or 2 of 8 bits, lie in the same 32 words, two neighbours in the halves of
a word:

    32 words of an output    word 0    k=193 k=129 k=65 k=1 | k=192 k=128 k=64 k=0      8 codes of 4 bits, the lowest
                             word 1    k=195 k=131 k=67 k=3 | k=194 k=130 k=66 k=2      bits to the right
                             ..                        '------------------------'- piece 0
    memory    [lines, outputs, 32]     a program's outputs side by side: one stretch for each line

Shifted by n * bits, both halves end with codes of piece n. With the bits of 128 before it, a code of 4 bits is a number
in bfloat16: 128 + code. One instruction puts these bits there for two codes, and another one subtracts 128 + offset
from both. What is left is a small integer, which bfloat16 holds exactly. So the matrix units multiply integers, in one
sum for each group, and the sum is multiplied by the group's scale in float32. Nothing is rounded before the result.

Where the lines are dealt out to several programs (plan.py), each writes its sums, and a second kernel adds them in
their order: no atomics, the same bits every time. It can go on to the residual stream and the norm behind it. Where
they are not, a program can have some columns of gate and the same ones of up, and return SwiGLU's middle.

vLLM: model_executor/layers/quantization/awq_triton.py, model_executor/kernels/linear/mixed_precision/
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.language.extra.cuda import num_warps

from folovllm.attention.kernels.tile import compiled_for_amd
from folovllm.layers.kernels.few_rows import ask_for, swiglu
from folovllm.layers.kernels.silu_mul import silu_mul
from folovllm.layers.norm import RMSNorm
from folovllm.layers.quantization.codes import Codes
from folovllm.layers.quantization.plan import choose_plan
from folovllm.utils.dependent_launch import dependent_launch, wait_for_kernel_before
from folovllm.utils.gpus import gpu_of

INTERPRETED: bool = triton.knobs.runtime.interpret
GROUPS = (128, 64, 32, 16)  # columns that share a scale, as the kernel knows them; a larger group is several alike
COLUMNS = 1024  # of a program that adds splits up
AHEAD_BYTES: tl.constexpr = tl.constexpr(96 << 10)  # that a program asks for before its x is there, as in few_rows.py
TWO_TO_120: tl.constexpr = tl.constexpr(2.0**120)


class PackedCodes(NamedTuple):
    words: torch.Tensor  # int32 [lines, outs, words of a piece]; a line's are contiguous
    scale: torch.Tensor  # float32 [groups, outs]
    offset: torch.Tensor | None  # uint8 [groups, outs]; None: the codes are e4m3 numbers
    bits: int
    group: int
    in_features: int


def kernel_group(codes: Codes) -> int:
    """Of GROUPS; 0: none divides the weight's own. One group for a whole row may end inside of a kernel's."""
    if codes.scale.shape[1] == 1:
        return GROUPS[0]
    return next((size for size in GROUPS if codes.group_size % size == 0), 0)


def pack_codes(codes: Codes, bits: int, *, by_outputs: bool = False) -> PackedCodes:
    """A row is filled up to whole lines. by_outputs: an output's lines follow one another in memory."""
    group, places, half, size = kernel_group(codes), 16 // bits, 2 ** (bits - 1), codes.values.shape[1]
    columns = -(-size // (places * min(group, 64))) * places * min(group, 64)
    is_float = codes.values.is_floating_point()
    numbers = codes.values.view(torch.uint8).int() if is_float else codes.values.int() + half
    # [outs, lines, pieces of a line, words, halves]
    values = F.pad(numbers, (0, columns - size)).view(len(numbers), -1, places, min(group, 64) // 2, 2)
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=values.device).view(2, places).T[:, None]
    words = (values << shifts).sum((2, 4), dtype=torch.int32).transpose(0, 1)
    words = words if by_outputs else words.contiguous()
    again = -(-codes.group_size // group)

    def of_groups(numbers: torch.Tensor) -> torch.Tensor:
        rows = numbers.T.repeat_interleave(again, 0, output_size=again * numbers.shape[1])
        return F.pad(rows, (0, 0, 0, -(-columns // group) - len(rows))).contiguous()

    zero = torch.zeros_like(codes.scale) if codes.zero is None else codes.zero.float()
    offset = None if is_float else of_groups(zero + half).to(torch.uint8)
    return PackedCodes(words, of_groups(codes.scale), offset, bits, group, size)


CODES_BF16, CODES_FP16 = (
    tl.constexpr(
        f"{{ .reg .b32 both, one; mov.b32 one, {one}; lop3.b32 both, $1, 0x000f000f, {base}, 0xea; "
        f"fma.rn.{dtype} $0, both, one, $2; }}"
    )
    for dtype, base, one in (("bf16x2", "0x43004300", "0x3f803f80"), ("f16x2", "0x64006400", "0x3c003c00"))
)
"""Of $1, whose halves end with codes of 4 bits: code + 128 (1024 in float16) + $2, exactly. In a sum with a product,
because PTX has no sum of two bfloat16 before Hopper; the assembler makes a plain sum of it."""
E4M3_BF16, E4M3_FP16 = (
    tl.constexpr(
        f"{{ .reg .b32 both, sign, zero, factor; mov.b32 zero, 0x80008000; mov.b32 factor, {factor}; "
        f"and.b32 sign, $1, zero; shr.b32 both, $1, {shift}; lop3.b32 both, both, {mask}, sign, 0xea; "
        f"fma.rn.{dtype} $0, both, factor, zero; }}"
    )
    for dtype, shift, mask, factor in (
        ("bf16x2", 4, "0x07f007f0", "0x7b807b80"),
        ("f16x2", 1, "0x3f803f80", "0x5c005c00"),
    )
)
"""Of $1, whose halves begin with e4m3 numbers: as they are. Sign, exponent and mantissa go to their places. There the
exponent means 2^-120 (2^-8) times as much, subnormal numbers too, and -0.0 is added to keep a zero's sign."""


@triton.jit
def _half(words, offset, PLACE: tl.constexpr, BITS: tl.constexpr, E4M3: tl.constexpr):
    """The codes at bit PLACE, less their offset, in float32. A float of 2^23 has no bits behind the point: with a code
    as its lowest bits it is 2^23 + code. A conversion would be an instruction of which a multiprocessor makes few. An
    e4m3 number is moved to its place, see E4M3_BF16."""
    code = (words >> PLACE) & ((1 << BITS) - 1)
    if E4M3:
        return (((code & 0x80) << 24) | ((code & 0x7F) << 20)).to(tl.float32, bitcast=True) * TWO_TO_120
    return (code | 0x4B000000).to(tl.float32, bitcast=True) - (offset.to(tl.float32) + 8388608.0)[:, None]


@triton.jit
def _weights(
    words, offset, PLACE: tl.constexpr, BITS: tl.constexpr, E4M3: tl.constexpr, DTYPE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Piece PLACE of words [outputs, words], [outputs, 2 * words] of DTYPE."""
    BF16: tl.constexpr = DTYPE.is_bf16()
    if INTERPRETED or DTYPE.primitive_bitwidth == 32 or (BITS == 8 and not E4M3) or compiled_for_amd():
        low = _half(words, offset, PLACE * BITS, BITS, E4M3).to(DTYPE)
        high = _half(words, offset, PLACE * BITS + 16, BITS, E4M3).to(DTYPE)
    else:
        if E4M3:
            move: tl.constexpr = E4M3_BF16 if BF16 else E4M3_FP16
            shifted = words << (8 - PLACE * BITS)
            both = tl.inline_asm_elementwise(move, "=r,r", [shifted], dtype=tl.int32, is_pure=True, pack=1)
        else:
            take: tl.constexpr = CODES_BF16 if BF16 else CODES_FP16
            less = (offset.to(tl.int32) + (0xC300 if BF16 else 0xE400)) * 0x10001  # -128 (-1024) - offset, twice
            args = [words >> (PLACE * BITS), less[:, None]]
            both = tl.inline_asm_elementwise(take, "=r,r,r", args, dtype=tl.int32, is_pure=True, pack=1)
        low, high = both.to(tl.int16).to(DTYPE, bitcast=True), (both >> 16).to(tl.int16).to(DTYPE, bitcast=True)
    return tl.reshape(tl.join(low, high), [words.shape[0], 2 * words.shape[1]])


@triton.jit
def _add_line(
    acc, line, words_at, scale_at, offset_at, x_at, stride_line, in_features, out_features, BITS: tl.constexpr,
    GROUP: tl.constexpr, PIECE: tl.constexpr, E4M3: tl.constexpr, EVEN: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """acc [outputs, rows] with what a line's columns add to it. The places are those of line 0."""
    PLACES: tl.constexpr = 16 // BITS
    TOGETHER: tl.constexpr = min(GROUP // PIECE, PLACES)  # pieces of a line that share a scale
    words = tl.load(words_at + line * stride_line)  # below 2^31: 8 GiB of words
    for part in tl.static_range(PLACES // TOGETHER):
        first = line * PLACES + part * TOGETHER
        group = first * PIECE // GROUP * out_features
        scale = tl.load(scale_at + group)
        offset = scale if E4M3 else tl.load(offset_at + group)
        total = tl.zeros([acc.shape[0], acc.shape[1]], tl.float32)
        for n in tl.static_range(TOGETHER):
            column = (first + n) * PIECE
            if EVEN:
                x = tl.load(x_at + column)  # [columns, rows]
            else:
                x = tl.load(x_at + column, mask=(column + tl.arange(0, PIECE) < in_features)[:, None], other=0.0)
            if INTERPRETED:  # its products take the raw bits of bfloat16
                x = x.to(tl.float32)
            weight = _weights(words, offset, part * TOGETHER + n, BITS, E4M3, x.dtype, INTERPRETED)
            total = tl.dot(weight, x, total, input_precision="ieee")
        acc += total * scale[:, None]
    return acc


@triton.jit(do_not_specialize=["num_rows", "num_lines", "lines_each"])
def _linear_codes_kernel(
    x_ptr, words_ptr, scale_ptr, offset_ptr, bias_ptr, out_ptr, num_rows, num_lines, lines_each, in_features,
    out_features, stride_x, stride_line, stride_out, BITS: tl.constexpr, GROUP: tl.constexpr, PIECE: tl.constexpr,
    E4M3: tl.constexpr, EVEN: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PARTS: tl.constexpr, INTERPRETED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """PARTS: 2 where the outputs are gate's, then up's; a program has as many of each."""
    # Programs that follow one another share their outputs: a line comes from memory once, and then from the L2 cache.
    row_tiles = tl.cdiv(num_rows, BLOCK_M)
    EACH: tl.constexpr = BLOCK_N // PARTS
    size, first, start = out_features // PARTS, tl.program_id(0) // row_tiles * EACH, tl.program_id(1) * lines_each
    end = tl.minimum(start + lines_each, num_lines)
    if DEPENDENT:  # codes never change: the first lines are asked for before x is there
        lines: tl.constexpr = AHEAD_BYTES // (BLOCK_N * 2 * PIECE)
        num_bytes = tl.minimum(size - first, EACH) * (2 * PIECE)
        if stride_out == PIECE // 2:  # else an output's lines follow one another
            for part in tl.static_range(PARTS):
                words = words_ptr + (part * size + first) * stride_out
                ask_for(words, stride_line, start, end - 1, num_bytes, lines, num_warps())
    wait_for_kernel_before(DEPENDENT)
    rows = tl.program_id(0) % row_tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = first + tl.arange(0, EACH)
    outs = first + tl.arange(0, BLOCK_N)
    if PARTS == 2:
        outs = first + tl.arange(0, BLOCK_N) % EACH + tl.arange(0, BLOCK_N) // EACH * size
    # What is behind the last row or output reads that one again: its result is not stored.
    row, column = tl.minimum(rows, num_rows - 1).to(tl.int64), tl.minimum(outs, out_features - 1)
    x_at = x_ptr + (row * stride_x)[None, :] + tl.arange(0, PIECE)[:, None]
    words_at = words_ptr + (column * stride_out)[:, None] + tl.arange(0, PIECE // 2)[None, :]
    scale_at, offset_at = scale_ptr + column, offset_ptr + column
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for line in range(start, end):  # not `while`, in which Triton would fetch no lines ahead
        acc = _add_line(
            acc, line, words_at, scale_at, offset_at, x_at, stride_line, in_features, out_features,
            BITS, GROUP, PIECE, E4M3, EVEN, INTERPRETED,
        )  # fmt: skip
    if HAS_BIAS:
        acc += tl.load(bias_ptr + column).to(tl.float32)[:, None]
    if PARTS == 2:
        gate, up = tl.split(tl.permute(tl.reshape(acc, [2, EACH, BLOCK_M]), (1, 2, 0)))
        acc = swiglu(gate, up)
    out_rows = tl.program_id(1).to(tl.int64) * num_rows + rows
    out_at = out_ptr + (out_rows * size)[None, :] + columns[:, None]
    exists = (rows < num_rows)[None, :] & (columns < size)[:, None]
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=exists)


@triton.jit(do_not_specialize=["num_rows"])
def _add_splits_kernel(
    sums_ptr, bias_ptr, out_ptr, residual_ptr, norm_ptr, eps, num_rows, out_features, SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr, NORM: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr,
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
    if NORM:  # of the whole row, as add_rms_norm.py has it
        places = residual_ptr + row * out_features + columns
        stream = total + tl.load(places, mask=exists, other=0.0).to(tl.float32)
        stream = stream.to(residual_ptr.dtype.element_ty)
        tl.store(places, stream, mask=exists)
        total = stream.to(tl.float32)
        total *= tl.rsqrt(tl.sum(total * total, axis=0) / out_features + eps)
        total *= tl.load(norm_ptr + columns, mask=exists, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * out_features + columns, total.to(out_ptr.dtype.element_ty), mask=exists)


def linear_codes(
    x: torch.Tensor, packed: PackedCodes, bias: torch.Tensor | None = None, *, invariant: bool = False,
    gated: bool = False, into: tuple[RMSNorm, torch.Tensor] | None = None,
) -> torch.Tensor:  # fmt: skip
    """y [num_rows, outs], of x's dtype, of x [num_rows, in_features].

    gated: the outputs are gate's and up's; silu(gate) * up, [num_rows, outs / 2].
    into: y is added to this residual stream [num_rows, outs], contiguous, and the norm of that is returned.

    Raises:
        ValueError: x is not contiguous inside a row, or has not as many columns as the weight.
    """
    (num_lines, outs, words), num_rows = packed.words.shape, len(x)
    if x.shape[1:] != (packed.in_features,) or x.stride(1) != 1:
        got = f"{list(x.shape)} with strides {x.stride()}"
        raise ValueError(f"x must be [rows, {packed.in_features}] and contiguous inside a row, got {got}")
    if not num_rows:
        return x.new_empty(0, outs // (1 + gated))
    gpu, strides, is_float = gpu_of(x.device), packed.words.stride()[:2], packed.offset is None
    plan = choose_plan(
        num_rows, outs, num_lines, x.element_size(), invariant=invariant, small=gpu.has_small_tiles,
        tensor_memory=gpu.is_nvidia(10),
    )  # fmt: skip
    split, launch = plan.splits > 1, dependent_launch(x.device)
    parts = 1 if split or not gated else 2
    out = torch.empty(num_rows, outs // parts, dtype=x.dtype, device=x.device)
    sums = torch.empty(plan.splits, num_rows, outs, dtype=torch.float32, device=x.device) if split else out
    grid = (triton.cdiv(num_rows, plan.rows) * triton.cdiv(outs // parts, plan.outs // parts), plan.splits)
    _linear_codes_kernel[grid](
        x, packed.words, packed.scale, packed.scale if is_float else packed.offset,
        sums if split or bias is None else bias, sums, num_rows, num_lines, triton.cdiv(num_lines, plan.splits),
        packed.in_features, outs, x.stride(0), *strides,
        BITS=packed.bits, GROUP=packed.group, PIECE=2 * words, E4M3=is_float,
        EVEN=packed.in_features == num_lines * words * 32 // packed.bits,
        HAS_BIAS=bias is not None and not split, BLOCK_M=plan.rows, BLOCK_N=plan.outs, PARTS=parts,
        INTERPRETED=INTERPRETED, **launch, num_warps=plan.warps, num_stages=gpu.stages(plan.stages),
    )  # fmt: skip
    if split:
        columns = COLUMNS if into is None else triton.next_power_of_2(outs)
        weight, eps, residual = (out, 0.0, out) if into is None else (into[0].weight, into[0].eps, into[1])
        _add_splits_kernel[(num_rows, triton.cdiv(outs, columns))](
            sums, sums if bias is None else bias, out, residual, weight, eps, num_rows, outs, SPLITS=plan.splits,
            HAS_BIAS=bias is not None, NORM=into is not None, COLUMNS=columns, **launch,
            num_warps=min(max(columns // 256, 4), 16),
        )  # fmt: skip
    elif into is not None:
        out, _ = into[0](out, into[1])
    return silu_mul(out) if gated and split else out
