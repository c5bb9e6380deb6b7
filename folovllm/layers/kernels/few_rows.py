"""A product of few rows, with what is around it in a layer: norm, SwiGLU, residual.

    norm ─ qkv        y = (x * w) @ W.T * scale        scale: of a row, 1 / sqrt(mean(x^2) + eps)
    o (+)             residual += x @ W.T
    norm ─ gate·up    y = silu(gate) * up, each as qkv
    down (+)          as o

With few rows a product is its weight's way from memory, and a layer of small kernels mostly waits: for a launch, for
first bytes, for the kernel before. So a program asks for its weights before it waits for the kernel before: they never
change, and are in the L2 cache when its x is written. What comes behind is short.

A program has COLUMNS of the weight's rows, and all of their numbers: nothing is summed between programs. Each of its
CHAINS warps has a piece of every step along them, and the warps' sums are added at the end, in one order:

    weight [COLUMNS, in_features]   | 0 0 1 1 2 2 3 3 | 0 0 1 1 2 2 3 3 | ...      numbers: the warp
                                      └ DEPTH           └ a step

That is a batched tl.dot, [CHAINS, COLUMNS, DEPTH] by [CHAINS, DEPTH, ROWS]. Weights are the operand that has 16 rows at
least, so that 8 rows of x are multiplied as 8. Every program reads all of x, from the L2 cache: 64 rows of it are more
than its weights. So with more than 16 rows and many columns a program has 64 columns in one chain, which all warps
share.

Each number of x is multiplied by the norm's weight, rounded as a norm would round it, and the row's scale comes at the
end: it is known when the whole row has passed. In float16 x * w could pass 65,504, so the model is bfloat16's (or
float32's, in Triton's interpreter).

vLLM: none; it has these apart
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from folovllm.layers.norm import RMSNorm
from folovllm.utils.dependent_launch import dependent_launch

INTERPRETED: bool = triton.knobs.runtime.interpret
TILES = (8, 16, 32, 64)
"""Rows that a kernel is compiled for."""
PROGRAMS = 96  # at least, or they have fewer columns: of 132 multiprocessors most have one
BUFFERS, BUFFER_BYTES = 4, 96 << 10  # steps on their way to a program; the shared memory that every GPU has for it
AHEAD_BYTES = 96 << 10  # that a program asks for before its x is there: of all of them together, what an L2 cache holds


@triton.jit
def ask_for(ptr, stride, first, last, num_bytes, ROWS: tl.constexpr, WARPS: tl.constexpr):
    """The first bytes, a multiple of 16, of ROWS rows from `first` on their way to the L2 cache; none is behind `last`.
    A warp asks for every WARPSth row, by one of its threads."""
    warp = tl.arange(0, 32 * WARPS) // 32
    num_bytes = tl.zeros([32 * WARPS], tl.int32) + num_bytes
    for number in tl.static_range((ROWS + WARPS - 1) // WARPS):
        row = tl.minimum(first + number * WARPS + warp, last)
        at = ptr + row.to(tl.int64) * stride
        tl.inline_asm_elementwise(
            """{
            .reg .pred elected;
            elect.sync _|elected, 0xffffffff;
            @elected cp.async.bulk.prefetch.L2.global [$1], $2;
            mov.u32 $0, 0;
            }""",
            "=r,l,r", [at.to(tl.int64), num_bytes], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def swiglu(gate, up):
    """silu(gate) * up, in float32."""
    small = tl.exp(-tl.abs(gate))  # of a negative number only: it cannot overflow
    return gate * (tl.where(gate >= 0, 1.0, small) / (1.0 + small)) * up


@triton.jit(do_not_specialize=["num_rows"])
def _few_rows_kernel(
    x_ptr, weight_ptr, bias_ptr, norm_ptr, out_ptr, num_rows, out_features, eps,
    IN: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHAINS: tl.constexpr, DEPTH: tl.constexpr, WARPS: tl.constexpr,
    AHEAD: tl.constexpr, INTERPRETED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """x [num_rows, IN], weight [out_features, IN], out [num_rows, out_features], which is read, too, where ADD. GATED:
    weight and bias have twice as many rows, gate's and then up's."""
    first = tl.program_id(0) * COLUMNS
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()  # the next kernel may ask for its weights, too
        ask_for(weight_ptr, IN, first, out_features - 1, 2 * AHEAD, COLUMNS, WARPS)
        if GATED:
            ask_for(weight_ptr, IN, out_features + first, 2 * out_features - 1, 2 * AHEAD, COLUMNS, WARPS)
        tl.extra.cuda.gdc_wait()
    column, row = first + tl.arange(0, COLUMNS), tl.arange(0, ROWS)
    column_exists, row_exists = column < out_features, row < num_rows
    weight_rows = weight_ptr + column.to(tl.int64) * IN
    up_rows = weight_rows + out_features.to(tl.int64) * IN
    place = row[None, :] * out_features + column[:, None]
    exists = row_exists[None, :] & column_exists[:, None]
    if ADD:
        residual = tl.load(out_ptr + place, mask=exists, other=0.0).to(tl.float32)
    k = tl.arange(0, DEPTH)
    if CHAINS > 1:  # there is a dimension more, and a sum over it at the end
        k = tl.arange(0, CHAINS)[:, None] * DEPTH + k[None, :]
        acc = tl.zeros([CHAINS, COLUMNS, ROWS], tl.float32)
    else:
        acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    acc_up = acc
    squares = tl.zeros([CHAINS, ROWS, DEPTH // 8], tl.float32)
    for start in range(0, IN, CHAINS * DEPTH):
        at, inside = tl.expand_dims(start + k, -2), tl.expand_dims(start + k < IN, -2)
        x = tl.load((x_ptr + row * IN)[:, None] + at, mask=row_exists[:, None] & inside, other=0.0)
        weight_exists = column_exists[:, None] & inside
        weight = tl.load(weight_rows[:, None] + at, mask=weight_exists, other=0.0)
        if NORM:
            wide = x.to(tl.float32)
            squares += tl.sum(tl.reshape(wide * wide, [CHAINS, ROWS, DEPTH // 8, 8]), 3)  # inside of a thread
            x = (wide * tl.load(norm_ptr + at, mask=inside, other=0.0).to(tl.float32)).to(x.dtype)
        if INTERPRETED:  # its products take the raw bits of bfloat16
            x, weight = x.to(tl.float32), weight.to(tl.float32)
        if CHAINS > 1:
            x = tl.permute(x, (0, 2, 1))
        else:
            x = tl.trans(x)
        acc = tl.dot(weight, x, acc, input_precision="ieee")
        if GATED:
            up = tl.load(up_rows[:, None] + at, mask=weight_exists, other=0.0)
            acc_up = tl.dot(up.to(weight.dtype), x, acc_up, input_precision="ieee")
    out, up = acc, acc_up
    if CHAINS > 1:
        out, up = tl.sum(acc, 0), tl.sum(acc_up, 0)
    if NORM:
        scale = tl.rsqrt(tl.sum(tl.sum(squares, 2), 0) / IN + eps)[None, :]
        out, up = out * scale, up * scale
    if HAS_BIAS:
        out += tl.load(bias_ptr + column, mask=column_exists, other=0.0).to(tl.float32)[:, None]
        if GATED:
            up += tl.load(bias_ptr + out_features + column, mask=column_exists, other=0.0).to(tl.float32)[:, None]
    if GATED:
        out = swiglu(out, up)
    if ADD:
        out += residual
    tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), mask=exists)


def constants(num_rows: int, out_features: int, in_features: int, *, gated: bool) -> dict[str, int]:
    """What a kernel is compiled with for so many rows, at most TILES[-1]: its tile, what it asks for ahead, its warps
    and stages."""
    rows = next(tile for tile in TILES if tile >= num_rows)
    wide = out_features >= 32 * PROGRAMS
    if wide and rows > 16:
        columns, chains, depth, warps = 64, 1, 64, 8
    else:
        columns, depth = (32 if wide else 16), (64 if rows <= 16 else 32)
        chains = warps = 4 if wide or gated else 8
    weights = columns * (1 + gated)
    buffers = min(BUFFERS, max(1, BUFFER_BYTES // (2 * (weights + rows) * chains * depth)))
    return {
        "ROWS": rows, "COLUMNS": columns, "CHAINS": chains, "DEPTH": depth, "WARPS": warps,
        "AHEAD": min(in_features, AHEAD_BYTES // (2 * weights)), "num_warps": warps,
        # One step's operands are in registers, but for those that Hopper's matrix units read where they are.
        "num_stages": buffers + (chains > 1),
    }  # fmt: skip


def few_rows(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, norm: RMSNorm | None = None,
    gated: bool = False, add_to: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """x [num_rows, in_features] @ weight.T + bias -> [num_rows, out_features], of at most TILES[-1] rows.

    norm: is applied to x before.  gated: weight and bias are gate's and up's, and silu(gate) * up is returned.
    add_to: [num_rows, out_features], to which the result is added, and which is returned.
    All tensors are contiguous, and in_features is a multiple of 8.
    """
    (num_rows, in_features), out_features = x.shape, weight.shape[0] // (1 + gated)
    out = x.new_empty(num_rows, out_features) if add_to is None else add_to
    compiled = constants(num_rows, out_features, in_features, gated=gated)
    if num_rows:
        _few_rows_kernel[(triton.cdiv(out_features, compiled["COLUMNS"]),)](
            x, weight, weight if bias is None else bias, weight if norm is None else norm.weight, out,
            num_rows, out_features, 0.0 if norm is None else norm.eps, IN=in_features,
            NORM=norm is not None, GATED=gated, ADD=add_to is not None, HAS_BIAS=bias is not None,
            INTERPRETED=INTERPRETED, **compiled, **dependent_launch(x.device),
        )  # fmt: skip
    return out
