"""store_kv_int8: round the new tokens' K and V to int8, with a scale for each head, and put both into the cache.

    program i    k[i]  head 0 [ . . . . ]  largest / 127 = scale      number / scale, to the nearest = code
                       head 1 [ . . . . ]
    slot[i] = 37, blocks of 16: block 2, offset 5
    block 2 of head 0 in the K cache     | codes of offset 0 | .. 5 .. | codes of 15 | scale of 0 | .. 5 .. | of 15 |

Division is exact to the last bit, as on a CPU: the codes are those that torch makes (attention/backends/int8.py).

vLLM: v1/attention/ops/triton_reshape_and_cache_flash.py
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _store_kv_int8(
    k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, slots_ptr,
    stride_k, stride_kh, stride_v, stride_vh, stride_b, stride_h,
    HEADS: tl.constexpr, HEADS_PAD: tl.constexpr, HEAD_SIZE: tl.constexpr, HEAD_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    offset, heads, columns = slot % BLOCK_SIZE, tl.arange(0, HEADS_PAD), tl.arange(0, HEAD_PAD)
    exists = heads < HEADS
    mask = exists[:, None] & (columns < HEAD_SIZE)[None, :]
    for part in tl.static_range(2):
        x_ptr, cache_ptr = k_ptr + token * stride_k + heads * stride_kh, k_cache_ptr
        if part == 1:
            x_ptr, cache_ptr = v_ptr + token * stride_v + heads * stride_vh, v_cache_ptr
        x = tl.load(x_ptr[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        # The sum of zeros is NaN where a number is NaN or infinite, which the maximum may not see.
        scale = tl.div_rn(tl.max(tl.abs(x), axis=1), 127.0) + tl.sum(x * 0.0, axis=1)
        number = tl.div_rn(x, tl.where(scale > 0, scale, 1.0)[:, None] + tl.zeros_like(x))
        number = tl.minimum(tl.maximum(number, -127.0), 127.0)  # a scale of few bits, far below 1e-37, is too small
        # 1.5 * 2^23 + n has no bit behind the point: the sum rounds to a whole number, ties to even.
        code = ((number + 12582912.0) - 12582912.0).to(tl.int32).to(tl.int8)
        runs = cache_ptr + slot // BLOCK_SIZE * stride_b + heads * stride_h
        tl.store((runs + offset * HEAD_SIZE)[:, None] + columns[None, :], code, mask=mask)
        tl.store((runs + BLOCK_SIZE * HEAD_SIZE).to(tl.pointer_type(tl.float32)) + offset, scale, mask=exists)


def store_kv_int8(
    k: torch.Tensor, v: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Store k, v [num_tokens, num_kv_heads, head_size] at their slots.

    k and v may be views of a fused projection: any stride between tokens and heads, none inside a head.
    key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_size] int8, views of blocks that have the
        scales behind the codes (codes_of() in backends/int8.py).
    slot_mapping: [num_tokens], block * block_size + offset. Where two tokens have one slot, either may win.
    """
    num_tokens, num_kv_heads, head_size = k.shape
    if num_tokens == 0:
        return
    stride_b, _, stride_h, _ = key_cache.stride()
    _store_kv_int8[(num_tokens,)](
        k, v, key_cache, value_cache, slot_mapping,
        k.stride(0), k.stride(1), v.stride(0), v.stride(1), stride_b, stride_h,
        HEADS=num_kv_heads, HEADS_PAD=triton.next_power_of_2(num_kv_heads), HEAD_SIZE=head_size,
        HEAD_PAD=triton.next_power_of_2(head_size), BLOCK_SIZE=key_cache.shape[1], num_warps=4,
    )  # fmt: skip
