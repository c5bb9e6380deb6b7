"""Residual add and RMSNorm in one pass: a row is read once, and stays in registers until both results are written.

    separately    x ─┐                                        fused    x ─┐
          residual ─(+)─▶ memory ─▶ square, mean ─▶ scale      residual ─(+)─▶ registers ─▶ square, mean, scale ─▶ out
                              └────────────────────▶                      └─▶ residual, in its place

A program is a row: its `size` elements lie in the registers of 4 to 16 warps. The threads exchange one number only, the
sum of the squares.

Per row of E elements of s bytes:

                   launches   bytes
    separately     2          (2 + 1) E s for the sum, (1 + 1) E s for the norm   =  5 E s + E s for the weight
    fused          1          2 E s read, 2 E s written                           =  4 E s + E s for the weight

The weight is the same for all rows and stays in L2. At 1,024 elements in bfloat16 a row moves 8 KB. A decode step of
256 sequences moves 2.1 MB, half a microsecond of an H200's bandwidth: there the saved launch counts for more than the
saved bytes. In a prefill of 8,192 tokens the bytes count for more.

vLLM: csrc/layernorm_kernels.cu (fused_add_rms_norm)
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import triton
    import triton.language as tl
else:
    from folovllm.utils.triton_import import tl, triton


@triton.jit
def _add_rms_norm_kernel(
    x_ptr,
    residual_ptr,  # read and written where ADD, else not looked at
    weight_ptr,
    out_ptr,
    x_stride,
    residual_stride,
    size,
    eps,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):
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


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """norm(x) * weight over the last dimension of `x` [..., size], in a new tensor."""
    return _launch(x, None, weight, eps)


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """norm(x + residual) * weight in a new tensor; the sum itself is written over `residual`."""
    return _launch(x, residual, weight, eps)


def _launch(x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    size = x.shape[-1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows = x.reshape(-1, size)
    if not len(rows):
        return out
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    stream = rows if residual is None else residual.view(-1, size)  # a view or an error: it is written to
    block = triton.next_power_of_2(size)
    _add_rms_norm_kernel[(len(rows),)](
        rows,
        stream,
        weight,
        out,
        rows.stride(0),
        stream.stride(0),
        size,
        eps,
        ADD=residual is not None,
        BLOCK=block,
        num_warps=min(max(block // 256, 4), 16),  # 8 elements a thread, so that a load can be 16 bytes of bfloat16
    )
    return out
