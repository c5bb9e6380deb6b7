"""What the two attention kernels share: one tile of keys and values, one step of the online softmax, and the loop.

A tile of keys is BLOCK_N tokens of one KV head. In the cache a token's head is a run of `head_size` numbers, and the
block table says where each token is:

    position   62 63 64 65 66        block table of the sequence   .. 9 5 ..
    block       9  9  5  5  5        address = block * stride_block + (position % block_size) * stride_token
    offset     30 31  0  1  2                + KV head * stride_head + 0 .. head_size - 1      (blocks of 32)

So a tile may span blocks or be inside one, and any BLOCK_N goes with any block_size. 64 tokens with heads of 128
numbers in 16 bits are 64 reads of 256 contiguous bytes, two whole cache lines each: scattered blocks cost no bandwidth.
The addresses are int64, because a cache of 2^31 numbers has only 4 GiB in 16 bits. A position at or behind `end` is not
read at all: NaN may be there, and zero times NaN is NaN.

In int8, a block of a head has its codes, then a float32 scale for each token. The products are of codes. Scores are
multiplied by the scales of keys, and the softmax's weights by those of values.

vLLM: v1/attention/ops/triton_unified_attention.py
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.target_info import current_target

INTERPRETED: bool = triton.knobs.runtime.interpret
"""True where Triton's interpreter runs the kernels that are imported from here on. It multiplies the raw bits of
bfloat16, so they compute in float32 there."""

LOG2E = 1.4426950408889634
"""exp(x) = exp2(x * LOG2E), and the hardware computes exp2. The factor is multiplied into the scale of the scores."""

STAGES = 5
"""Steps of the loop under way at a time. A tile's K and V cannot be asked for before its block numbers are there, so
Triton shares the four steps ahead out to both: block numbers are fetched two tiles ahead of K and V, and these two
tiles ahead of their products.

    step   0            1            2            3            4
           blocks of i               K, V of i                 products of i

With 3 stages it is one tile each. Then K and V have a single buffer, and the copy of the next tile begins when the
products of this one are over: the loop waits for memory (`cp.async.wait_group 0`) in each round. 4 are shared out as 3.
"""

MAX_HEAD_SIZE = 256


def check_shapes(
    q: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, block_tables: torch.Tensor
) -> tuple[int, int]:
    """(block_size, num_kv_heads) of the caches [num_blocks, block_size, num_kv_heads, head_size].

    Raises:
        ValueError: shapes that do not fit each other, or strides that a kernel does not know.
    """
    _, block_size, num_kv_heads, head_size = key_cache.shape
    if value_cache.shape != key_cache.shape:
        raise ValueError(f"value_cache must be {list(key_cache.shape)} as key_cache, got {list(value_cache.shape)}")
    if q.ndim != 3 or q.shape[2] != head_size or q.shape[1] % num_kv_heads:
        raise ValueError(
            f"q must be [tokens, a multiple of {num_kv_heads} heads, {head_size}] for this cache, got {list(q.shape)}"
        )
    if any(tensor.stride(-1) != 1 for tensor in (q, key_cache, value_cache)):
        raise ValueError("q, key_cache, value_cache must be contiguous inside a head")
    if block_tables.stride(-1) != 1:
        raise ValueError(f"block_tables must be contiguous in a row, got strides {block_tables.stride()}")
    return block_size, num_kv_heads


def padded_head_size(head_size: int) -> int:
    """The columns of a tile: a power of two, and at least 16, as tl.dot demands. Columns behind head_size hold zeros.

    Raises:
        ValueError: head_size is not between 1 and MAX_HEAD_SIZE.
    """
    if not 1 <= head_size <= MAX_HEAD_SIZE:
        raise ValueError(f"head_size must be between 1 and {MAX_HEAD_SIZE} for the Triton kernels, got {head_size}")
    return max(16, triton.next_power_of_2(head_size))


def product_size(q: torch.Tensor, key_cache: torch.Tensor) -> int:
    """Bytes of a number as it is multiplied, which tiles go by. A cache of 8 bits is multiplied in q's dtype."""
    return q.element_size() if key_cache.element_size() == 1 else key_cache.element_size()


def tile_tokens(head_pad: int, element_size: int, small: bool = False) -> int:
    """BLOCK_N of a program with few rows: a tile of K of at most 16 KB, and of 8 KB in float32, whose numbers wait in
    registers for the threads that multiply them; or half of it on a smaller GPU. At least 16, as tl.dot
    demands."""
    tile_bytes = (16 << 10 if element_size <= 2 else 8 << 10) >> small
    return max(16, min(64, tile_bytes // (head_pad * element_size)))


@triton.constexpr_function
def compiled_for_amd():
    """Asked inside of a kernel. AMD's matrix units multiply float32 as it is, and know no PTX."""
    return not INTERPRETED and (target := current_target()) is not None and target.backend == "hip"


@triton.jit
def rows_mask(rows, HEAD_SIZE: tl.constexpr, HEAD_PAD: tl.constexpr):
    """[len(rows), HEAD_PAD]: true where the tile has a number to read. `rows` [len(rows)] is true for rows that exist;
    columns from HEAD_SIZE on are padding."""
    return rows[:, None] & (tl.arange(0, HEAD_PAD) < HEAD_SIZE)[None, :]


@triton.jit
def load_scales(ptr, blocks, offsets, exists, stride_b, BLOCK_SIZE: tl.constexpr, HEAD_SIZE: tl.constexpr):
    """Of a tile's tokens, [BLOCK_N]. ptr: to the codes of a KV head in block 0."""
    scales = (ptr + blocks * stride_b + BLOCK_SIZE * HEAD_SIZE).to(tl.pointer_type(tl.float32))
    return tl.load(scales + offsets, mask=exists, other=0.0)


@triton.jit
def attend_tile(
    q, running_max, running_sum, acc,
    start, end, last_seen, scale,
    k_ptr, v_ptr, table_ptr,
    stride_kb, stride_kt, stride_vb, stride_vt,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_SIZE: tl.constexpr, HEAD_PAD: tl.constexpr,
):  # fmt: skip
    """Let the rows of q [M, HEAD_PAD] see keys start .. start + BLOCK_N - 1, as far as they are before `end`.

    last_seen [M]: the last position that each row may see. Per row, after any number of tiles, with s the scores seen:

        running_max = max(s)    running_sum = sum(exp2(s - running_max))    acc = sum(exp2(s - running_max) * v)

    Where the new tile has a greater maximum, the old sums are multiplied by exp2(old maximum - new maximum). Each row
    must see key `start` of its first tile: else both maxima would be -inf, and their difference NaN.
    """
    positions = start + tl.arange(0, BLOCK_N)
    exists = positions < end
    columns = tl.arange(0, HEAD_PAD)
    mask = rows_mask(exists, HEAD_SIZE, HEAD_PAD)
    blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=exists, other=0).to(tl.int64)
    offsets = positions % BLOCK_SIZE
    # Both loads are issued before the first product, so that the values are on their way while the scores are made.
    k = tl.load(k_ptr + (blocks * stride_kb + offsets * stride_kt)[:, None] + columns[None, :], mask=mask, other=0.0)
    v = tl.load(v_ptr + (blocks * stride_vb + offsets * stride_vt)[:, None] + columns[None, :], mask=mask, other=0.0)
    k, v = k.to(q.dtype), v.to(q.dtype)  # another one in the interpreter, and for a cache of 8 bits
    # ieee: float32 is multiplied as it is. The default rounds it to 10 bits, which would change greedy tokens.
    # tf32x3: as two numbers of 10 bits, whose products are added up: 20 bits and matrix units. A number of 8 bits is
    # one of 10 already; converted to float32 for the threads to multiply, K and V would take more registers than there
    # are.
    IN_PARTS: tl.constexpr = k_ptr.dtype.element_ty.primitive_bitwidth == 8 and not compiled_for_amd()
    PRECISION: tl.constexpr = "tf32x3" if IN_PARTS else "ieee"
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    if k_ptr.dtype.element_ty.is_int8():
        scores *= load_scales(k_ptr, blocks, offsets, exists, stride_kb, BLOCK_SIZE, HEAD_SIZE)[None, :]
    visible = exists[None, :] & (positions[None, :] <= last_seen[:, None])
    scores = tl.where(visible, scores, -float("inf"))
    new_max = tl.maximum(running_max, tl.max(scores, 1))
    weights = tl.exp2(scores - new_max[:, None])
    rescale = tl.exp2(running_max - new_max)
    running_sum = running_sum * rescale + tl.sum(weights, 1)
    if v_ptr.dtype.element_ty.is_int8():
        weights *= load_scales(v_ptr, blocks, offsets, exists, stride_vb, BLOCK_SIZE, HEAD_SIZE)[None, :]
    acc = tl.dot(weights.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)
    return new_max, running_sum, acc


@triton.jit
def attend_keys(
    q, start, end, last_seen, scale,
    k_ptr, v_ptr, table_ptr,
    stride_kb, stride_kt, stride_vb, stride_vt,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_SIZE: tl.constexpr, HEAD_PAD: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """(running_max, running_sum, acc) of the rows of q over the keys from `start` up to `end`, tile by tile."""
    if k_ptr.dtype.element_ty.primitive_bitwidth > 8:  # attention is computed in the dtype in which K and V are kept
        q = q.to(k_ptr.dtype.element_ty)
    if INTERPRETED:
        q = q.to(tl.float32)
    running_max = tl.full([q.shape[0]], -float("inf"), tl.float32)
    running_sum = tl.zeros([q.shape[0]], tl.float32)
    acc = tl.zeros([q.shape[0], HEAD_PAD], tl.float32)
    for tile in range(start, end, BLOCK_N):  # not `while`, in which Triton would fetch no tiles ahead
        running_max, running_sum, acc = attend_tile(
            q, running_max, running_sum, acc, tile, end, last_seen, scale, k_ptr, v_ptr, table_ptr,
            stride_kb, stride_kt, stride_vb, stride_vt, BLOCK_SIZE, BLOCK_N, HEAD_SIZE, HEAD_PAD,
        )  # fmt: skip
    return running_max, running_sum, acc
