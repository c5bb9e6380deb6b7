"""Residual add and RMSNorm in one pass: a row is read once, and stays in registers until both results are written.

    separately    x ─┐                                        fused    x ─┐
          residual ─(+)─▶ memory ─▶ square, mean ─▶ scale      residual ─(+)─▶ registers ─▶ square, mean, scale ─▶ out
                              └────────────────────▶                      └─▶ residual, in its place

A program is a row: its `size` elements lie in the registers of 4 to 16 warps. The threads exchange one number only, the
sum of the squares.

For each element this moves 4 numbers, and the two operators 5. The weight is the same for all rows and stays in L2. In
a decode step the saved launch counts for more than the saved bytes, in a long prefill the bytes.

vLLM: csrc/layernorm_kernels.cu (fused_add_rms_norm)
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from folovllm.utils.dependent_launch import dependent_launch, wait_for_kernel_before


@triton.jit
def _add_rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, x_stride, residual_stride, size, eps,
    ADD: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """residual: read and written where ADD, else not looked at."""
    wait_for_kernel_before(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)  # a row's offset may pass 2^31 elements
    column = tl.arange(0, BLOCK)
    inside = column < size
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        places = residual_ptr + row * residual_stride + column
        x += tl.load(places, mask=inside, other=0.0).to(tl.float32)
        # The residual stream is kept in the model's dtype. The rounded sum is normalised, because the next layer reads
        # the rounded one, too.
        stream = x.to(residual_ptr.dtype.element_ty)
        tl.store(places, stream, mask=inside)
        x = stream.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / size + eps)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    out = x * scale * weight
    tl.store(out_ptr + row * size + column, out.to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As layers/norm.py has it, for x [num_tokens, size] whose rows may be strided. The sum is written over `residual`,
    which is returned; without one, x is."""
    num_tokens, size = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    stream = x if residual is None else residual
    block = triton.next_power_of_2(size)
    if num_tokens:
        _add_rms_norm_kernel[(num_tokens,)](
            x, stream, weight, out, x.stride(0), stream.stride(0), size, eps,
            ADD=residual is not None, BLOCK=block, **dependent_launch(x.device),
            num_warps=min(max(block // 256, 4), 16),  # 8 elements a thread, so that a load can be 16 bytes of bfloat16
        )  # fmt: skip
    return out, stream
