"""grouped_mlps: the products of a mixture of experts, each expert's rows with its own weight, in one launch.

    pairs sorted by expert    | 0  0  0 | 2 | 5  5  5  5  5 | ...
    tiles of 4 rows           [ 0  0  0 ] [2] [5  5  5  5] [5]        no tile has rows of two experts

How many tiles there are depends on what the router chose, and that number stays on the device. The grid has as many as
there could be, which the shapes alone say: a CUDA graph replays it for any choice. A program finds its expert by
adding up the tiles of those before it; one that is left over ends at once, and an expert without rows has no program,
so its weight is not read.

    gate_up   act[pair] = silu(x[token] @ gate.T) * (x[token] @ up.T)     rows of x are gathered, SwiGLU needs no launch
    down      y[token * k + place] = act[pair] @ down.T                   rows are put back where they came from
    combine   out[token] = Σ weight * y[token * k + place]                one place after the other

vLLM: model_executor/layers/fused_moe/fused_moe.py (fused_moe_kernel), csrc/moe/moe_align_sum_kernels.cu
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from folovllm.layers.moe import Groups, Routing
from folovllm.utils.gpus import gpu_of

INTERPRETED: bool = triton.knobs.runtime.interpret
FEW_ROWS = 16  # of a tile when an expert has few: the least that a matrix unit multiplies
STAGES = 3
COLUMNS = 1024  # of a program of _combine


@triton.jit
def _find_tile(ends_ptr, num_experts, EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr):
    """This program's expert, and its first and last pair; an expert beyond all of them where there is no such tile."""
    tile, e = tl.program_id(0), tl.arange(0, EXPERTS)
    ends = tl.load(ends_ptr + e, mask=e < num_experts, other=0)
    starts = tl.load(ends_ptr + e - 1, mask=(e > 0) & (e < num_experts), other=0)
    tiles = tl.where(e < num_experts, (ends - starts + BLOCK_M - 1) // BLOCK_M, 0)
    until = tl.cumsum(tiles, 0)
    expert = tl.sum((until <= tile).to(tl.int32), 0)
    before = tl.max(tl.where(until <= tile, until, 0), 0)
    first = tl.sum(tl.where(e == expert, starts, 0), 0) + (tile - before) * BLOCK_M
    return expert, first, tl.sum(tl.where(e == expert, ends, 0), 0)


@triton.jit
def _load(rows, k, size, row_exists, INTERPRETED: tl.constexpr):
    tile = tl.load(rows + k[None, :], mask=row_exists[:, None] & (k < size)[None, :], other=0.0)
    return tile.to(tl.float32) if INTERPRETED else tile  # its products take the raw bits of bfloat16


@triton.jit
def _add_gate_up(
    gate, up, x_rows, gate_rows, up_offset, k, size, row_exists, column_exists, INTERPRETED: tl.constexpr
):  # fmt: skip
    x = _load(x_rows, k, size, row_exists, INTERPRETED)
    gate = tl.dot(x, tl.trans(_load(gate_rows, k, size, column_exists, INTERPRETED)), gate, input_precision="ieee")
    weight = _load(gate_rows + up_offset, k, size, column_exists, INTERPRETED)
    return gate, tl.dot(x, tl.trans(weight), up, input_precision="ieee")


@triton.jit(do_not_specialize=["num_experts", "top_k"])
def _gate_up_kernel(
    x_ptr, weight_ptr, order_ptr, ends_ptr, out_ptr, num_experts, top_k, hidden, size,
    EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    expert, first, end = _find_tile(ends_ptr, num_experts, EXPERTS, BLOCK_M)
    if expert >= num_experts:
        return
    pairs, columns = first + tl.arange(0, BLOCK_M), tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_exists, column_exists = pairs < end, columns < size
    tokens = tl.load(order_ptr + pairs, mask=row_exists, other=0) // top_k
    x_rows = x_ptr + (tokens * hidden)[:, None]
    gate_rows = weight_ptr + ((expert.to(tl.int64) * 2 * size + columns) * hidden)[:, None]
    up_offset = size * hidden
    gate = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up, k = tl.zeros([BLOCK_M, BLOCK_N], tl.float32), tl.arange(0, BLOCK_K)
    for start in range(0, hidden, BLOCK_K):
        gate, up = _add_gate_up(
            gate, up, x_rows, gate_rows, up_offset, start + k, hidden, row_exists, column_exists, INTERPRETED
        )
    small = tl.exp(-tl.abs(gate))  # as in silu_mul.py
    out = gate * tl.where(gate >= 0, 1.0, small) / (1.0 + small) * up
    at = out_ptr + (pairs.to(tl.int64) * size)[:, None] + columns[None, :]
    tl.store(at, out.to(out_ptr.dtype.element_ty), mask=row_exists[:, None] & column_exists[None, :])


@triton.jit
def _add_down(acc, x_rows, weight_rows, k, size, row_exists, column_exists, INTERPRETED: tl.constexpr):
    x = _load(x_rows, k, size, row_exists, INTERPRETED)
    weight = _load(weight_rows, k, size, column_exists, INTERPRETED)
    return tl.dot(x, tl.trans(weight), acc, input_precision="ieee")


@triton.jit(do_not_specialize=["num_experts"])
def _down_kernel(
    act_ptr, weight_ptr, order_ptr, ends_ptr, out_ptr, num_experts, hidden, size,
    EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    expert, first, end = _find_tile(ends_ptr, num_experts, EXPERTS, BLOCK_M)
    if expert >= num_experts:
        return
    pairs, columns = first + tl.arange(0, BLOCK_M), tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_exists, column_exists = pairs < end, columns < hidden
    act_rows = act_ptr + (pairs.to(tl.int64) * size)[:, None]
    weight_rows = weight_ptr + ((expert.to(tl.int64) * hidden + columns) * size)[:, None]
    acc, k = tl.zeros([BLOCK_M, BLOCK_N], tl.float32), tl.arange(0, BLOCK_K)
    for start in range(0, size, BLOCK_K):
        acc = _add_down(acc, act_rows, weight_rows, start + k, size, row_exists, column_exists, INTERPRETED)
    places = tl.load(order_ptr + pairs, mask=row_exists, other=0)
    at = out_ptr + (places * hidden)[:, None] + columns[None, :]
    tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=row_exists[:, None] & column_exists[None, :])


@triton.jit(do_not_specialize=["top_k"])
def _combine_kernel(y_ptr, weights_ptr, out_ptr, top_k, hidden, COLUMNS: tl.constexpr):
    token, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    exists, total, place = columns < hidden, tl.zeros([COLUMNS], tl.float32), 0
    while place < top_k:
        weight = tl.load(weights_ptr + token * top_k + place)
        part = tl.load(y_ptr + (token * top_k + place) * hidden + columns, mask=exists, other=0.0)
        total += weight * part.to(tl.float32)
        place += 1
    tl.store(out_ptr + token * hidden + columns, total.to(out_ptr.dtype.element_ty), mask=exists)


def most_tiles(num_pairs: int, num_experts: int, block_m: int) -> int:
    """How many tiles there are at the most, whatever was chosen: each expert that has pairs may have a tile that is not
    full."""
    with_pairs = min(num_pairs, num_experts)
    return with_pairs + (num_pairs - with_pairs) // block_m


def tiles(num_pairs: int, num_experts: int, element_size: int, *, invariant: bool) -> tuple[int, int, int]:
    """(BLOCK_M, BLOCK_N, BLOCK_K). invariant: by the dtype alone, so that a row's sums are made in one way."""
    if element_size > 2:
        return 16, 32, 32
    if invariant or num_pairs <= FEW_ROWS * num_experts:
        return FEW_ROWS, 64, 128
    return 64, 64, 64


def grouped_mlps(
    x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, groups: Groups, routing: Routing, *,
    invariant: bool = False,
) -> torch.Tensor:  # fmt: skip
    """x [num_tokens, hidden], gate_up [num_experts, 2 * size, hidden], down [num_experts, hidden, size], all of one
    dtype and contiguous -> each token's weighted sum [num_tokens, hidden]."""
    num_experts, hidden, size = down.shape
    num_tokens, top_k = routing.experts.shape
    num_pairs, x = num_tokens * top_k, x.contiguous()
    block_m, block_n, block_k = tiles(num_pairs, num_experts, x.element_size(), invariant=invariant)
    act, y, out = x.new_empty(num_pairs, size), x.new_empty(num_pairs, hidden), torch.empty_like(x)
    if not num_pairs:
        return out
    rows = most_tiles(num_pairs, num_experts, block_m)
    chosen = {
        "EXPERTS": triton.next_power_of_2(num_experts), "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k,
        "INTERPRETED": INTERPRETED, "num_warps": 4, "num_stages": gpu_of(x.device).stages(STAGES),
    }  # fmt: skip
    _gate_up_kernel[(rows, triton.cdiv(size, block_n))](
        x, gate_up, *groups, act, num_experts, top_k, hidden, size, **chosen
    )
    _down_kernel[(rows, triton.cdiv(hidden, block_n))](act, down, *groups, y, num_experts, hidden, size, **chosen)
    _combine_kernel[(num_tokens, triton.cdiv(hidden, COLUMNS))](
        y, routing.weights.contiguous(), out, top_k, hidden, COLUMNS=COLUMNS, num_warps=4
    )
    return out
