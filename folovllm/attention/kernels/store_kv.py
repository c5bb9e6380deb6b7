"""store_kv: put the new tokens' K and V into their slots of the cache, in one launch.

    program i    k[i]  [h0 ........ h7]                     v[i]  [h0 ........ h7]
                        |  one row of the cache              |
    slot[i] = 37        v                                    v
    K cache   [block 2, offset 5: h0 .. h7]       V cache   [block 2, offset 5: h0 .. h7]      (blocks of 16)

A program copies a token: all KV heads of K, then of V. With 8 heads of 128 in 16 bits, K and V are 2 KiB each: 16 bytes
for each of 128 threads, the widest access a thread has. Every number is read once and written once, which is
4 * num_kv_heads * head_size * bytes: 8 KiB a token, 2 ns at 4.3 TB/s. There is no arithmetic. A decode step of 256
tokens moves 2 MiB a layer in half a microsecond, less than a launch takes. So the gain is one launch in place of two
index_copy_.

vLLM: v1/attention/ops/triton_reshape_and_cache_flash.py
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _store_kv(
    k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, slots_ptr,
    stride_k, stride_kh, stride_v, stride_vh,
    HEAD_SIZE: tl.constexpr, ROW: tl.constexpr, ROW_PAD: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    numbers = tl.arange(0, ROW_PAD)
    head, column = numbers // HEAD_SIZE, numbers % HEAD_SIZE
    mask = numbers < ROW
    k = tl.load(k_ptr + token * stride_k + head * stride_kh + column, mask=mask)
    v = tl.load(v_ptr + token * stride_v + head * stride_vh + column, mask=mask)
    tl.store(k_cache_ptr + slot * ROW + numbers, k.to(k_cache_ptr.dtype.element_ty), mask=mask)
    tl.store(v_cache_ptr + slot * ROW + numbers, v.to(v_cache_ptr.dtype.element_ty), mask=mask)


def store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kernel: Any = None,
) -> None:
    """Store k, v [num_tokens, num_kv_heads, head_size] at their slots, cast to the cache's dtype.

    k and v may be views of a fused projection: any stride between tokens and heads, none inside a head.
    key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_size], contiguous.
    slot_mapping: [num_tokens], block * block_size + offset. Where two tokens have one slot, either may win.
    kernel: one that takes what _store_kv takes, and casts in its own way; None: _store_kv.
    """
    num_tokens, num_kv_heads, head_size = k.shape
    if num_tokens == 0:
        return
    row = num_kv_heads * head_size
    (kernel or _store_kv)[(num_tokens,)](
        k, v, key_cache, value_cache, slot_mapping,
        k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        HEAD_SIZE=head_size, ROW=row, ROW_PAD=triton.next_power_of_2(row), num_warps=4,
    )  # fmt: skip
