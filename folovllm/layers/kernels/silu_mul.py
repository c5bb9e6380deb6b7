"""silu(gate) * up in one pass over the stacked projection's output.

    token t     |-------- gate --------|--------- up ---------|
                 [   tile   ]           [   tile   ]             a program: the same columns of both
                        └──── silu ── * ────┘ ─▶ out [   tile   ]

For each element of a half this moves 3 numbers, and the two operators 5. silu(gate) is rounded to the model's dtype
nowhere on the way, so in bfloat16 the result is the nearer one to float64.

vLLM: csrc/activation_kernels.cu (silu_and_mul)
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from folovllm.utils.dependent_launch import dependent_launch, wait_for_kernel_before

# Columns of one program: 8 a thread of 4 warps, 16 bytes of bfloat16.
COLUMNS = 1024


@triton.jit
def _silu_mul_kernel(gate_up_ptr, out_ptr, row_stride, size, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr):
    wait_for_kernel_before(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < size
    gate_at = gate_up_ptr + row * row_stride + column
    gate = tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_at + size, mask=inside, other=0.0).to(tl.float32)
    # exp of a negative number only: it cannot overflow, whatever the gate.
    small = tl.exp(-tl.abs(gate))
    sigmoid = tl.where(gate >= 0, 1.0, small) / (1.0 + small)
    tl.store(out_ptr + row * size + column, (gate * sigmoid * up).to(out_ptr.dtype.element_ty), mask=inside)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[num_tokens, 2 * intermediate], gate beside up, -> [num_tokens, intermediate]; rows may be strided."""
    num_tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(num_tokens, size, dtype=gate_up.dtype, device=gate_up.device)
    if num_tokens:
        grid = (num_tokens, triton.cdiv(size, COLUMNS))
        _silu_mul_kernel[grid](
            gate_up, out, gate_up.stride(0), size, COLUMNS=COLUMNS,
            **dependent_launch(out.device), num_warps=4,
        )  # fmt: skip
    return out
