"""add_lora: what adapters add to a product, of all rows and all adapters of a step in two launches.

    rows sorted by slot    | - - | 0 0 0 | 2 | 3 3 3 3 3 | ...
    tiles of 4 rows              [ 0 0 0 ] [2] [3 3 3 3] [3]         the experts' tiles, found as experts.py does

    shrink    low[part, row] = x[row, part] @ A[slot][:, part].T     float32; a part: 1,024 columns of x
    expand    out[row] += (Σ low[part, row]) @ B[slot].T             a number of `out` is one program's: no atomics

Shrinking has few results, so one program for each would leave most of a GPU idle while a few read A: more programs have
a part of its columns each. The grid follows from shapes, and a CUDA graph replays it whoever speaks. A row is summed in
the same order in any company.

vLLM: lora/ops/triton_ops/lora_shrink_op.py, lora_expand_op.py
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from folovllm.layers.kernels.experts import find_tile, most_tiles
from folovllm.layers.kernels.matmul import INTERPRETED, STAGES, add_products, load_tile
from folovllm.utils.dependent_launch import dependent_launch, wait_for_kernel_before
from folovllm.utils.gpus import gpu_of

PART = 1024  # columns of x that a program multiplies
ROWS, RANKS, COLUMNS = 16, 16, 128  # of a tile: rows, numbers of `low` and of `out`


@triton.jit(do_not_specialize=["num_groups", "num_rows"])
def _shrink_kernel(
    x_ptr, a_ptr, rows_ptr, ends_ptr, low_ptr, num_groups, num_rows, rank, size, GROUPS: tl.constexpr,
    ROWS: tl.constexpr, RANKS: tl.constexpr, BLOCK_K: tl.constexpr, PART: tl.constexpr, INTERPRETED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_kernel_before(DEPENDENT)
    group, first, end = find_tile(ends_ptr, num_groups, GROUPS, ROWS)
    if (group == 0) | (group >= num_groups):  # group 0 has no adapter
        return
    places, ranks = first + tl.arange(0, ROWS), tl.program_id(1) * RANKS + tl.arange(0, RANKS)
    row_exists, rank_exists, part = places < end, ranks < rank, tl.program_id(2)
    rows = tl.load(rows_ptr + places, mask=row_exists, other=0)
    x_rows = x_ptr + (rows * size)[:, None]
    a_rows = a_ptr + (((group - 1).to(tl.int64) * rank + ranks) * size)[:, None]
    acc, k = tl.zeros([ROWS, RANKS], tl.float32), part * PART + tl.arange(0, BLOCK_K)
    for start in range(0, PART, BLOCK_K):
        acc = add_products(acc, x_rows, a_rows, start + k, size, row_exists, rank_exists, INTERPRETED)
    at = low_ptr + ((part * num_rows + places) * rank)[:, None] + ranks[None, :]
    tl.store(at, acc, mask=row_exists[:, None] & rank_exists[None, :])


@triton.jit(do_not_specialize=["num_groups", "num_rows"])
def _expand_kernel(
    low_ptr, b_ptr, rows_ptr, ends_ptr, out_ptr, num_groups, num_rows, outs, RANK: tl.constexpr, PARTS: tl.constexpr,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr, COLUMNS: tl.constexpr, INTERPRETED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_kernel_before(DEPENDENT)
    group, first, end = find_tile(ends_ptr, num_groups, GROUPS, ROWS)
    if (group == 0) | (group >= num_groups):
        return
    places, columns = first + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row_exists, column_exists = places < end, columns < outs
    low_rows = low_ptr + (places * RANK)[:, None]
    b_rows = b_ptr + (((group - 1).to(tl.int64) * outs + columns) * RANK)[:, None]
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, RANK, RANKS):
        ranks = start + tl.arange(0, RANKS)
        low = tl.zeros([ROWS, RANKS], tl.float32)
        for part in tl.static_range(PARTS):
            low += load_tile(low_rows + part * num_rows * RANK, ranks, RANK, row_exists, INTERPRETED)
        b = load_tile(b_rows, ranks, RANK, column_exists, INTERPRETED)
        acc = tl.dot(low.to(b.dtype), tl.trans(b), acc, input_precision="ieee")
    rows = tl.load(rows_ptr + places, mask=row_exists, other=0)
    at, exists = out_ptr + (rows * outs)[:, None] + columns[None, :], row_exists[:, None] & column_exists[None, :]
    acc += tl.load(at, mask=exists, other=0.0).to(tl.float32)
    tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=exists)


def columns(element_size: int) -> int:
    """Of x and A that are multiplied at a time."""
    return 128 if element_size <= 2 else 32


def add_lora(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor, ends: torch.Tensor, out: torch.Tensor
) -> None:
    """x [num_rows, size] -> out [num_rows, outs], in place: out[row] += b[slot] @ a[slot] @ x[row].

    a [num_slots, rank, size], b [num_slots, outs, rank], all of x's dtype and contiguous. rows [num_rows], ends
    [1 + num_slots] int64: those of LoRAMapping.sorted_rows().
    """
    (num_slots, rank, size), (num_rows, outs) = a.shape, out.shape
    if not num_rows:
        return
    parts, x = triton.cdiv(size, PART), x.contiguous()
    low = torch.empty(parts, num_rows, rank, dtype=torch.float32, device=x.device)
    tiles, groups = most_tiles(num_rows, 1 + num_slots, ROWS), (rows, ends)
    chosen = {
        "GROUPS": triton.next_power_of_2(1 + num_slots), "ROWS": ROWS, "RANKS": RANKS, "INTERPRETED": INTERPRETED,
        "num_warps": 4, "num_stages": gpu_of(x.device).stages(STAGES), **dependent_launch(x.device),
    }  # fmt: skip
    _shrink_kernel[(tiles, triton.cdiv(rank, RANKS), parts)](
        x, a, *groups, low, 1 + num_slots, num_rows, rank, size,
        BLOCK_K=columns(x.element_size()), PART=PART, **chosen,
    )  # fmt: skip
    _expand_kernel[(tiles, triton.cdiv(outs, COLUMNS))](
        low, b, *groups, out, 1 + num_slots, num_rows, outs, RANK=rank, PARTS=parts, COLUMNS=COLUMNS, **chosen
    )
