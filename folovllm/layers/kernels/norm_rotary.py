"""Qwen3's norm of each head of q and k, the rotary embedding, and the way of K and V into the cache, in one pass.

The stacked projection leaves q, k and v of a token side by side. A program takes 8 heads of one token, first halves in
one tile and second halves in another, because rotation pairs element i with element i + head_size / 2:

    token t     |  q0  |  q1  | ... | k0 | ... | v0 | ...       v passes as it is
                | a  b | a  b |                                 one norm over a and b together
                a' = a cos - b sin,   b' = b cos + a sin        cos, sin: the angles of t, the same for all heads
                   |                      |         |
                   v                      v         v
                in place      K [slot of t: k0 .. ]   V [slot of t: v0 .. ]

Everything happens in float32 and is rounded once, when it is written back over the projection's output: q and k are
then views of that output, as v is anyway. What goes into the cache is cast to the cache's dtype. Where attention keeps
K and V in a way of its own, they stay out of the cache here.

Operator by operator these are 7 launches, which move 48 bytes for each element in bfloat16; here one moves 4. For
Qwen3-0.6B and 256 sequences that is 88 MB a step instead of 1,057. With one sequence the bytes hardly count, and the
gain is six launches fewer a layer. Storing K and V costs no launch and spares reading K.

vLLM: csrc/fused_qknorm_rope_kernel.cu, csrc/cache_kernels.cu (reshape_and_cache_flash_kernel)
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from folovllm.layers.norm import QKNorm
from folovllm.layers.ops import QKV
from folovllm.layers.rotary import Rotary
from folovllm.utils.dependent_launch import dependent_launch, wait_for_kernel_before

# Heads of one program. At a head size of 128, each thread of two warps then holds 8 elements of either half: 16 bytes
# of bfloat16, the widest access there is.
HEADS = 8


# Slots lie anywhere in what a step uploads.
@triton.jit(do_not_specialize_on_alignment=["slots_ptr"])
def _norm_rotary_kernel(
    heads_ptr, weight_ptr, cos_ptr, sin_ptr, cache_ptr, slots_ptr,
    token_stride, head_stride, angle_stride, values_stride, num_heads, num_kv_heads, half_size, eps,
    NORM: tl.constexpr, STORE: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """weight: [2, head_size], q's and k's. cache, slots: where STORE, else not looked at."""
    wait_for_kernel_before(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    column = tl.arange(0, BLOCK)
    in_head = (column < half_size)[None, :]
    turns = (head < num_heads + num_kv_heads)[:, None]  # the others are v's
    exists = (head < num_heads + 2 * num_kv_heads)[:, None] & in_head
    first = heads_ptr + token * token_stride + head[:, None] * head_stride + column[None, :]
    second = first + half_size
    raw_a = tl.load(first, mask=exists if STORE else turns & in_head, other=0.0)
    raw_b = tl.load(second, mask=exists if STORE else turns & in_head, other=0.0)
    a, b = raw_a.to(tl.float32), raw_b.to(tl.float32)
    if NORM:
        mean = (tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)) / (2 * half_size)
        scale = tl.rsqrt(mean + eps)[:, None]
        is_k = (head >= num_heads).to(tl.int32)  # the second row of weights is k's
        weight = weight_ptr + is_k[:, None] * (2 * half_size) + column[None, :]
        a *= scale * tl.load(weight, mask=exists, other=0.0).to(tl.float32)
        b *= scale * tl.load(weight + half_size, mask=exists, other=0.0).to(tl.float32)
    # The tables are as wide as a head: (cos, cos) and (-sin, sin). Half of each is enough: cos and sin.
    angle = token * angle_stride + column
    cos = tl.load(cos_ptr + angle, mask=column < half_size, other=0.0)[None, :]
    sin = tl.load(sin_ptr + angle + half_size, mask=column < half_size, other=0.0)[None, :]
    turned_a, turned_b = (a * cos - b * sin).to(raw_a.dtype), (b * cos + a * sin).to(raw_a.dtype)
    tl.store(first, turned_a, mask=turns & in_head)
    tl.store(second, turned_b, mask=turns & in_head)
    if STORE:
        row = head - num_heads  # of a token's K, and behind it of its V
        row = tl.where(row < num_kv_heads, row.to(tl.int64), row - num_kv_heads + values_stride // (2 * half_size))
        row += tl.load(slots_ptr + token).to(tl.int64) * num_kv_heads
        place = cache_ptr + row[:, None] * (2 * half_size) + column[None, :]
        is_stored = exists & (head >= num_heads)[:, None]
        dtype = cache_ptr.dtype.element_ty
        tl.store(place, tl.where(turns, turned_a, raw_a).to(dtype), mask=is_stored)
        tl.store(place + half_size, tl.where(turns, turned_b, raw_b).to(dtype), mask=is_stored)


def norm_rotary(
    heads: torch.Tensor, norm: QKNorm | None, rotary: Rotary, num_heads: int, num_kv_heads: int,
    cache: torch.Tensor | None = None, slots: torch.Tensor | None = None,
) -> QKV:  # fmt: skip
    """As layers/ops.py has it: q, k and v are views of `heads`, whose last dimension alone must be contiguous.

    cache: [2, num_blocks, block_size, num_kv_heads, head_size], contiguous, into which k and v are put as well, cast to
        its dtype, at slots [num_tokens]: block * block_size + offset. Where two tokens have one slot, either may win.
    """
    num_tokens, num_all_heads, head_size = heads.shape
    cos, sin = rotary
    if num_tokens:
        computed = num_heads + num_kv_heads if cache is None else num_all_heads
        _norm_rotary_kernel[(num_tokens, triton.cdiv(computed, HEADS))](
            heads, heads if norm is None else norm.weight, cos, sin, heads if cache is None else cache,
            heads if slots is None else slots, heads.stride(0), heads.stride(1), cos.stride(0),
            0 if cache is None else cache.stride(0), num_heads, num_kv_heads, head_size // 2,
            0.0 if norm is None else norm.eps, NORM=norm is not None, STORE=cache is not None, HEADS=HEADS,
            BLOCK=triton.next_power_of_2(head_size // 2), **dependent_launch(heads.device), num_warps=2,
        )  # fmt: skip
    q, k, v = heads.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    return q, k, v
