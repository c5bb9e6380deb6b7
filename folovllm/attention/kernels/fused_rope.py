"""Norm and rotation of q and k, and what the newest key adds, for a decode's program to do itself.

Column i of a head pairs with the one half a head further, which is loaded beside it. The tables of angles are (cos,
cos) and (-sin, sin), so both halves are computed alike: in float32, rounded once, as norm_rotary.py does.

vLLM: csrc/fused_qknorm_rope_kernel.cu
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from folovllm.attention.kernels.tile import LOWEST, rows_mask, soft_capped


@triton.jit
def rotated(
    head_ptr, mask, columns, weight_ptr, cos_ptr, sin_ptr, eps, HEAD_SIZE: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """The heads [N, HEAD_PAD] at head_ptr [N, 1], each with its norm and rotation."""
    HALF: tl.constexpr = HEAD_SIZE // 2
    pairs, inside = tl.where(columns < HALF, columns + HALF, columns - HALF), columns < HEAD_SIZE
    raw = tl.load(head_ptr + columns[None, :], mask=mask, other=0.0)
    a, b = raw.to(tl.float32), tl.load(head_ptr + pairs[None, :], mask=mask, other=0.0).to(tl.float32)
    if NORM:
        norm = tl.rsqrt(tl.sum(a * a, axis=1) / HEAD_SIZE + eps)[:, None]
        a *= norm * tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
        b *= norm * tl.load(weight_ptr + pairs, mask=inside, other=0.0).to(tl.float32)[None, :]
    cos, sin = tl.load(cos_ptr + columns, mask=inside, other=0.0), tl.load(sin_ptr + columns, mask=inside, other=0.0)
    return (a * cos[None, :] + b * sin[None, :]).to(raw.dtype)


@triton.jit
def score_newest(
    q, exists, scale, k_head, to_v, k_slot, v_slot, weight_ptr, cos_ptr, sin_ptr, eps,
    HEAD_SIZE: tl.constexpr, HEAD_PAD: tl.constexpr, NORM: tl.constexpr, SOFT_CAP: tl.constexpr,
):  # fmt: skip
    """(scores [M] of one head of k, rotated, and that of v [1, HEAD_PAD], `to_v` numbers further, in float32), both of
    which go into their slots, too. Where it does not exist here, the scores are LOWEST."""
    columns, one = tl.arange(0, HEAD_PAD), tl.zeros([1], tl.int64)[:, None]
    mask = rows_mask(tl.full([1], 1, tl.int1) & exists, HEAD_SIZE, HEAD_PAD)
    k = rotated(k_head + one, mask, columns, weight_ptr, cos_ptr, sin_ptr, eps, HEAD_SIZE, NORM)
    v = tl.load(k_head + to_v + one + columns[None, :], mask=mask, other=0.0).to(v_slot.dtype.element_ty)
    k = k.to(k_slot.dtype.element_ty)
    tl.store(k_slot + one + columns[None, :], k, mask=mask)
    tl.store(v_slot + one + columns[None, :], v, mask=mask)
    scores = soft_capped(tl.sum(q.to(k.dtype).to(tl.float32) * k.to(tl.float32), 1) * scale, SOFT_CAP)
    return tl.where(exists, scores, LOWEST), v.to(tl.float32)
