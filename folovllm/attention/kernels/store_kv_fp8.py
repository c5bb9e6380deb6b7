"""store_kv_fp8: round the new tokens' K and V to e4m3, 8 bits, and put the bytes into their slots of the cache.

    program i    k[i]  [h0 ........ h7]                     v[i]  [h0 ........ h7]
                        |  one row of the cache              |
    slot[i] = 37        v                                    v
    K cache   [block 2, offset 5: h0 .. h7]       V cache   [block 2, offset 5: h0 .. h7]      (blocks of 16)

    e4m3   s eeee mmm     largest 448, smallest normal 2^-6, below it steps of 2^-9; no infinity, s1111111 is NaN

A number is rounded to the nearest, ties to even, in integers. So the bytes are those that torch makes, on any GPU.
What is larger than 448 is stored as 448, infinity too; NaN stays NaN, so that a request whose numbers broke is found.

vLLM: csrc/cache_kernels.cu (reshape_and_cache_flash_kernel with fp8)
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def to_e4m3(x):
    """The byte of each number, in int32."""
    x = x.to(tl.float32)
    bits = x.to(tl.int32, bitcast=True)
    sign, magnitude = (bits >> 24) & 0x80, bits & 0x7FFFFFFF
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - (120 << 3)
    # 2^23 + n has no bit behind the point: the sum rounds to a whole number, ties to even.
    steps = (tl.abs(x) * 512.0 + 8388608.0).to(tl.int32, bitcast=True) & 0x7FFFFF
    byte = tl.where(magnitude < 0x3C800000, steps, tl.minimum(normal, 0x7E))  # 2^-6
    return sign | tl.where(magnitude > 0x7F800000, 0x7F, byte)


@triton.jit
def _store_kv_fp8(
    k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, slots_ptr,
    stride_k, stride_kh, stride_v, stride_vh,
    HEAD_SIZE: tl.constexpr, ROW: tl.constexpr, ROW_PAD: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    numbers = tl.arange(0, ROW_PAD)
    head, column = numbers // HEAD_SIZE, numbers % HEAD_SIZE
    mask = numbers < ROW
    k = tl.load(k_ptr + token * stride_k + head * stride_kh + column, mask=mask, other=0.0)
    v = tl.load(v_ptr + token * stride_v + head * stride_vh + column, mask=mask, other=0.0)
    tl.store(k_cache_ptr + slot * ROW + numbers, to_e4m3(k).to(tl.uint8), mask=mask)
    tl.store(v_cache_ptr + slot * ROW + numbers, to_e4m3(v).to(tl.uint8), mask=mask)


def store_kv_fp8(
    k: torch.Tensor, v: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Store k, v [num_tokens, num_kv_heads, head_size] at their slots.

    k and v may be views of a fused projection: any stride between tokens and heads, none inside a head.
    key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_size] uint8, contiguous.
    slot_mapping: [num_tokens], block * block_size + offset. Where two tokens have one slot, either may win.
    """
    num_tokens, num_kv_heads, head_size = k.shape
    if num_tokens == 0:
        return
    row = num_kv_heads * head_size
    _store_kv_fp8[(num_tokens,)](
        k, v, key_cache, value_cache, slot_mapping,
        k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        HEAD_SIZE=head_size, ROW=row, ROW_PAD=triton.next_power_of_2(row), num_warps=4,
    )  # fmt: skip
