"""linear: y = x @ weight.T + bias, each row summed in the same order however many there are.

A library chooses a kernel by the number of rows, and with few rows splits the sum: so the last bits change with the
batch. Here the tiles are fixed. A number of the result is one chain of tl.dot over BLOCK_K columns at a time, from the
first to the last, made by one program with the same code for every batch:

    program (rows, columns)    acc [BLOCK_M, BLOCK_N] = 0
                               for k in 0, BLOCK_K, ..:  acc += x[rows, k..] @ weight[columns, k..].T

vLLM: model_executor/determinism/batch_invariant.py (matmul_kernel_persistent)
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from folovllm.layers.linear import Linear, LinearMethod
from folovllm.utils.gpus import gpu_of

INTERPRETED: bool = triton.knobs.runtime.interpret
STAGES = 3
GROUP_ROWS = 8  # tiles of rows that go through the weight together: they find its tiles in the L2 cache


@triton.jit
def load_tile(rows, k, size, row_exists, INTERPRETED: tl.constexpr):
    tile = tl.load(rows + k[None, :], mask=row_exists[:, None] & (k < size)[None, :], other=0.0)
    return tile.to(tl.float32) if INTERPRETED else tile  # its products take the raw bits of bfloat16


@triton.jit
def add_products(acc, x_rows, weight_rows, k, size, row_exists, column_exists, INTERPRETED: tl.constexpr):
    x = load_tile(x_rows, k, size, row_exists, INTERPRETED)
    weight = load_tile(weight_rows, k, size, column_exists, INTERPRETED)
    return tl.dot(x, tl.trans(weight), acc, input_precision="ieee")


@triton.jit(do_not_specialize=["num_rows"])
def _linear_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, num_rows, in_features, out_features, stride_x,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_ROWS: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    row_tile, column_tile = tl.swizzle2d(
        tl.program_id(1), tl.program_id(0), tl.num_programs(1), tl.num_programs(0), GROUP_ROWS
    )
    rows, columns = row_tile * BLOCK_M + tl.arange(0, BLOCK_M), column_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    row_exists, column_exists = rows < num_rows, columns < out_features
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    x_rows = x_ptr + (rows.to(tl.int64) * stride_x)[:, None]
    weight_rows = weight_ptr + (columns.to(tl.int64) * in_features)[:, None]
    k = tl.arange(0, BLOCK_K)
    for start in range(0, in_features, BLOCK_K):  # not `while`, in which Triton would fetch no tiles ahead
        acc = add_products(acc, x_rows, weight_rows, start + k, in_features, row_exists, column_exists, INTERPRETED)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + columns, mask=column_exists, other=0.0).to(tl.float32)[None, :]
    out_ptrs = out_ptr + (rows.to(tl.int64) * out_features)[:, None] + columns[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=row_exists[:, None] & column_exists[None, :])


def tiles(element_size: int) -> tuple[int, int, int, int]:
    """(BLOCK_M, BLOCK_N, BLOCK_K, warps), by the dtype alone."""
    return (64, 128, 64, 8) if element_size <= 2 else (32, 32, 32, 4)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """y [num_rows, out_features] of x [num_rows, in_features] and weight [out_features, in_features], of x's dtype.

    A row's bits depend on that row, the weight and the bias alone.

    Raises:
        ValueError: x or weight is not contiguous inside a row.
    """
    (num_rows, in_features), out_features = x.shape, weight.shape[0]
    if x.stride(1) != 1 or not weight.is_contiguous():
        raise ValueError(f"x and weight must be contiguous inside a row, got strides {x.stride()}, {weight.stride()}")
    out = torch.empty(num_rows, out_features, dtype=x.dtype, device=x.device)
    block_m, block_n, block_k, num_warps = tiles(x.element_size())
    if num_rows:
        _linear_kernel[(triton.cdiv(out_features, block_n), triton.cdiv(num_rows, block_m))](
            x, weight, weight if bias is None else bias, out, num_rows, in_features, out_features, x.stride(0),
            HAS_BIAS=bias is not None, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_ROWS=GROUP_ROWS,
            INTERPRETED=INTERPRETED, num_warps=num_warps, num_stages=gpu_of(x.device).stages(STAGES),
        )  # fmt: skip
    return out


class TiledLinear(LinearMethod):
    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        return linear(x, layer.weight, layer.bias)
