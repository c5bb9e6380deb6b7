"""round_rows: each row of x in 8 bits with a scale of its own, int8 or e4m3, in one pass.

    row     scale = largest number in size / largest code          127 of int8, 448 of e4m3
            code  = x / scale, rounded to the nearest, ties to even

A program is a row, which stays in registers between the two. Division is exact to the last bit, as on a CPU: the codes
are those that torch makes.

vLLM: model_executor/layers/quantization/input_quant_fp8.py, model_executor/layers/quantization/utils/int8_utils.py
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from folovllm.attention.kernels.store_kv_fp8 import to_e4m3
from folovllm.utils.dependent_launch import dependent_launch, wait_for_kernel_before

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


@triton.jit
def _round_rows_kernel(
    x_ptr, codes_ptr, scale_ptr, stride_x, size, largest,
    FLOAT: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_kernel_before(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    x = tl.load(x_ptr + row * stride_x + column, mask=inside, other=0.0).to(tl.float32)
    # The sum of zeros is NaN where a number is NaN or infinite, which the maximum may not see.
    scale = tl.div_rn(tl.max(tl.abs(x), axis=0), largest) + tl.sum(x * 0.0, axis=0)
    tl.store(scale_ptr + row, scale)
    number = tl.div_rn(x, tl.zeros([BLOCK], tl.float32) + tl.where(scale > 0, scale, 1.0))
    if FLOAT:
        code = to_e4m3(number)
    else:  # 1.5 * 2^23 + n has no bit behind the point: the sum rounds to a whole number, ties to even
        code = ((number + 12582912.0) - 12582912.0).to(tl.int32)
    tl.store(codes_ptr + row * size + column, code.to(codes_ptr.dtype.element_ty), mask=inside)


def round_rows(x: torch.Tensor, dtype: torch.dtype, least_rows: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes [num_rows, size] of `dtype`, scales [num_rows, 1] float32) of x [num_rows, size], whose rows may be
    strided. dtype: of LARGEST. least_rows: codes has at least so many; what is behind x's is undefined."""
    (num_rows, size), is_float = x.shape, dtype.is_floating_point
    codes = torch.empty(max(num_rows, least_rows), size, dtype=torch.uint8 if is_float else dtype, device=x.device)
    scale = torch.empty(num_rows, 1, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(size)
    if num_rows:
        _round_rows_kernel[(num_rows,)](
            x, codes, scale, x.stride(0), size, LARGEST[dtype], FLOAT=is_float, BLOCK=block,
            **dependent_launch(x.device), num_warps=min(max(block // 256, 4), 16),
        )  # fmt: skip
    return codes.view(dtype), scale
