"""Qwen3's norm of each head of q and k, and the rotary embedding, in one pass and in place.

The stacked projection leaves q, k and v of a token side by side. A program takes 8 heads of one token, first halves in
one tile and second halves in another, because rotation pairs element i with element i + head_size / 2:

    token t     |  q0  |  q1  | ... | k0 | ... | v0 | ...       v is not touched
                | a  b | a  b |                                 one norm over a and b together
                a' = a cos - b sin,   b' = b cos + a sin        cos, sin: the angles of t, the same for all heads

Everything happens in float32 and is rounded once, when it is written back over the projection's output: q and k are
then views of that output, as v is anyway.

Per token, with h = num_heads + num_kv_heads heads of D elements of s bytes (the angles, 4 D bytes, are shared):

                   launches   bytes for each of the h D elements
    norm           1          s + s
    its weight     1          s + s
    widen          1          s + 4
    roll           1          4 + 4
    times cos      1          4 + 4
    plus times sin 1          4 + 4 + 4
    narrow         1          4 + s             together 7 launches, 6 s + 36 bytes: 48 in bfloat16
    fused          1          s + s             4 in bfloat16

For Qwen3-0.6B (h = 24, D = 128, 28 layers) and 256 sequences that is 88 MB a step instead of 1,057: at 4.3 TB/s, 20
microseconds instead of 246. With one sequence the bytes hardly count, and the gain is six launches fewer a layer.

vLLM: csrc/fused_qknorm_rope_kernel.cu
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from folovllm.layers.norm import QKNorm
from folovllm.layers.ops import QKV
from folovllm.layers.rotary import Rotary

# Heads of one program. At a head size of 128, each thread of two warps then holds 8 elements of either half: 16 bytes
# of bfloat16, the widest access there is.
HEADS = 8


@triton.jit
def _norm_rotary_kernel(
    qk_ptr,
    weight_ptr,  # [2, head_size]: q's, k's
    cos_ptr,
    sin_ptr,
    token_stride,
    head_stride,
    angle_stride,
    num_heads,
    num_all_heads,
    half_size,
    eps,
    NORM: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    column = tl.arange(0, BLOCK)
    inside = (head < num_all_heads)[:, None] & (column < half_size)[None, :]
    first = qk_ptr + token * token_stride + head[:, None] * head_stride + column[None, :]
    second = first + half_size
    a = tl.load(first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(second, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        mean = (tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)) / (2 * half_size)
        scale = tl.rsqrt(mean + eps)[:, None]
        is_k = (head >= num_heads).to(tl.int32)  # the second row of weights is k's
        weight = weight_ptr + is_k[:, None] * (2 * half_size) + column[None, :]
        a *= scale * tl.load(weight, mask=inside, other=0.0).to(tl.float32)
        b *= scale * tl.load(weight + half_size, mask=inside, other=0.0).to(tl.float32)
    # The tables are as wide as a head: (cos, cos) and (-sin, sin). Half of each is enough: cos and sin.
    angle = token * angle_stride + column
    cos = tl.load(cos_ptr + angle, mask=column < half_size, other=0.0)[None, :]
    sin = tl.load(sin_ptr + angle + half_size, mask=column < half_size, other=0.0)[None, :]
    dtype = qk_ptr.dtype.element_ty
    tl.store(first, (a * cos - b * sin).to(dtype), mask=inside)
    tl.store(second, (b * cos + a * sin).to(dtype), mask=inside)


def norm_rotary(heads: torch.Tensor, norm: QKNorm | None, rotary: Rotary, num_heads: int, num_kv_heads: int) -> QKV:
    """As layers/ops.py has it: q, k and v are views of `heads`, whose last dimension alone must be contiguous."""
    num_tokens, _, head_size = heads.shape
    num_all_heads, (cos, sin) = num_heads + num_kv_heads, rotary
    if num_tokens:
        _norm_rotary_kernel[(num_tokens, triton.cdiv(num_all_heads, HEADS))](
            heads, heads if norm is None else norm.weight, cos, sin, heads.stride(0), heads.stride(1), cos.stride(0),
            num_heads, num_all_heads, head_size // 2, 0.0 if norm is None else norm.eps,
            NORM=norm is not None, HEADS=HEADS, BLOCK=triton.next_power_of_2(head_size // 2), num_warps=2,
        )  # fmt: skip
    q, k, v = heads.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    return q, k, v
