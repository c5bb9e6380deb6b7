"""The kernels of a mixture of experts: route() and group() of layers/moe.py, and grouped_mlps, the products.

    route    a program a token     softmax, then k times the largest of those that are left
    group    a program an expert   counts the pairs of experts before it, and writes its own behind them, by token

Sorted so, each expert's rows are multiplied by its own weight, in one launch for all:

    pairs sorted by expert    | 0  0  0 | 2 | 5  5  5  5  5 | ...
    tiles of 4 rows           [ 0  0  0 ] [2] [5  5  5  5] [5]        no tile has rows of two experts

How many tiles there are depends on what the router chose, and that number stays on the device. The grid has as many as
there could be, which the shapes alone say: a CUDA graph replays it for any choice. A program finds its expert by
adding up the tiles of those before it; one that is left over ends at once, and an expert without rows has no program,
so its weight is not read.

    gate_up   act[pair] = silu(x[token] @ gate.T) * (x[token] @ up.T)     rows of x are gathered, SwiGLU needs no launch
    down      y[token * k + place] = act[pair] @ down.T                   rows are put back where they came from
    combine   out[token] = Σ weight * y[token * k + place]                one place after the other

vLLM: csrc/moe/topk_softmax_kernels.cu, csrc/moe/moe_align_sum_kernels.cu,
model_executor/layers/fused_moe/fused_moe.py (fused_moe_kernel)
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from folovllm.layers.kernels.matmul import INTERPRETED, STAGES, load_tile
from folovllm.layers.moe import Groups, Routing
from folovllm.utils.gpus import gpu_of

FEW_ROWS = 16  # of a tile when an expert has few: the least that a matrix unit multiplies
COLUMNS = 1024  # of a program of _combine
PAIRS = 1024  # that a program of _group looks at together


@triton.jit
def _route_kernel(
    logits_ptr, weights_ptr, experts_ptr, num_experts,
    TOP_K: tl.constexpr, RENORMALIZE: tl.constexpr, EXPERTS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    token, e, places = tl.program_id(0).to(tl.int64), tl.arange(0, EXPERTS), tl.arange(0, PLACES)
    logits = tl.load(logits_ptr + token * num_experts + e, mask=e < num_experts, other=float("-inf")).to(tl.float32)
    small = tl.exp(logits - tl.max(logits, 0))
    left = tl.div_rn(small, tl.sum(small, 0) + tl.zeros_like(small))
    # As in a sort, NaN is the largest. What is no expert, or has been chosen, is less than any.
    left = tl.where(e < num_experts, tl.where(left == left, left, 2.0), -1.0)
    weights, experts, total = tl.zeros([PLACES], tl.float32), tl.zeros([PLACES], tl.int64), 0.0
    for place in range(TOP_K):
        weight, expert = tl.max(left, 0, return_indices=True)  # of equal ones the first
        weight = tl.where(weight > 1.0, float("nan"), weight)
        weights, experts = tl.where(places == place, weight, weights), tl.where(places == place, expert, experts)
        left, total = tl.where(e == expert, -1.0, left), total + weight
    if RENORMALIZE:
        weights = tl.div_rn(weights, total + tl.zeros_like(weights))
    tl.store(weights_ptr + token * TOP_K + places, weights, mask=places < TOP_K)
    tl.store(experts_ptr + token * TOP_K + places, experts, mask=places < TOP_K)


@triton.jit(do_not_specialize=["num_pairs"])
def _group_kernel(experts_ptr, order_ptr, ends_ptr, num_pairs, PAIRS: tl.constexpr):
    expert, i, before = tl.program_id(0), tl.arange(0, PAIRS), 0
    for stores in tl.static_range(2):  # first it counts the pairs of the experts before it
        start = 0
        while start < num_pairs:
            chosen = tl.load(experts_ptr + start + i, mask=start + i < num_pairs, other=2**31 - 1)
            found = (chosen == expert if stores else chosen < expert).to(tl.int32)
            if stores:
                tl.store(order_ptr + before + tl.cumsum(found, 0) - 1, start + i, mask=found > 0)
            before += tl.sum(found, 0)
            start += PAIRS
    tl.store(ends_ptr + expert, before)


@triton.jit
def find_tile(ends_ptr, num_experts, EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr):
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


@triton.jit(do_not_specialize=["num_experts", "top_k"])
def _experts_kernel(
    x_ptr, weight_ptr, order_ptr, ends_ptr, out_ptr, num_experts, top_k, in_features, out_features,
    GATED: tl.constexpr, EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """GATED: rows of x are gathered, and an expert has as many rows of gate, then of up; else those of the result are
    put back."""
    expert, first, end = find_tile(ends_ptr, num_experts, EXPERTS, BLOCK_M)
    if expert >= num_experts:
        return
    pairs, columns = first + tl.arange(0, BLOCK_M), tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_exists, column_exists = pairs < end, columns < out_features
    row = pairs.to(tl.int64)
    if GATED:
        row = tl.load(order_ptr + pairs, mask=row_exists, other=0) // top_k
    x_rows = x_ptr + (row * in_features)[:, None]
    weight_rows = weight_ptr + ((expert.to(tl.int64) * (1 + GATED) * out_features + columns) * in_features)[:, None]
    acc, k = tl.zeros([BLOCK_M, BLOCK_N], tl.float32), tl.arange(0, BLOCK_K)
    up = acc
    for start in range(0, in_features, BLOCK_K):
        x = load_tile(x_rows, start + k, in_features, row_exists, INTERPRETED)
        weight = load_tile(weight_rows, start + k, in_features, column_exists, INTERPRETED)
        acc = tl.dot(x, tl.trans(weight), acc, input_precision="ieee")
        if GATED:
            up_rows = weight_rows + out_features * in_features
            weight = load_tile(up_rows, start + k, in_features, column_exists, INTERPRETED)
            up = tl.dot(x, tl.trans(weight), up, input_precision="ieee")
    if GATED:
        small, to = tl.exp(-tl.abs(acc)), pairs.to(tl.int64)  # as in silu_mul.py
        acc = acc * tl.where(acc >= 0, 1.0, small) / (1.0 + small) * up
    else:
        to = tl.load(order_ptr + pairs, mask=row_exists, other=0)
    at = out_ptr + (to * out_features)[:, None] + columns[None, :]
    tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=row_exists[:, None] & column_exists[None, :])


@triton.jit(do_not_specialize=["top_k"])
def combine_kernel(y_ptr, weights_ptr, out_ptr, top_k, hidden, COLUMNS: tl.constexpr):
    token, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    exists, total, place = columns < hidden, tl.zeros([COLUMNS], tl.float32), 0
    while place < top_k:
        weight = tl.load(weights_ptr + token * top_k + place)
        part = tl.load(y_ptr + (token * top_k + place) * hidden + columns, mask=exists, other=0.0)
        total += weight * part.to(tl.float32)
        place += 1
    tl.store(out_ptr + token * hidden + columns, total.to(out_ptr.dtype.element_ty), mask=exists)


def route(logits: torch.Tensor, top_k: int, *, renormalize: bool) -> Routing:
    """layers/moe.py's, with the same choice: a weight may differ in its last bits."""
    num_tokens, num_experts = logits.shape
    weights = logits.new_empty(num_tokens, top_k, dtype=torch.float32)
    routing = Routing(weights, torch.empty_like(weights, dtype=torch.int64))
    sizes = num_experts, top_k, renormalize, triton.next_power_of_2(num_experts), triton.next_power_of_2(top_k)
    _route_kernel[(num_tokens,)](logits.contiguous(), *routing, *sizes, num_warps=1)
    return routing


def group(experts: torch.Tensor, num_experts: int) -> Groups:
    """layers/moe.py's."""
    groups = Groups(experts.new_empty(experts.numel()), experts.new_empty(num_experts))
    _group_kernel[(num_experts,)](experts.contiguous(), *groups, experts.numel(), PAIRS, num_warps=4)
    return groups


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
    num_tiles = most_tiles(num_pairs, num_experts, block_m)
    for rows, weight, made, gated in ((x, gate_up, act, True), (act, down, y, False)):
        outs = made.shape[1]
        _experts_kernel[(num_tiles, triton.cdiv(outs, block_n))](
            rows, weight, *groups, made, num_experts, top_k, rows.shape[1], outs, GATED=gated,
            EXPERTS=triton.next_power_of_2(num_experts), BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k,
            INTERPRETED=INTERPRETED, num_warps=4, num_stages=gpu_of(x.device).stages(STAGES),
        )  # fmt: skip
    combine_kernel[(num_tokens, triton.cdiv(hidden, COLUMNS))](
        y, routing.weights.contiguous(), out, top_k, hidden, COLUMNS=COLUMNS, num_warps=4
    )
    return out
