"""paged_decode: attention of one query per sequence over its cached K and V, read through the block table.

    program (KV head h, sequence b, split s)            the query heads of group h, padded to 16 rows
                                                        q  [16, 128]
    block table of b    7  2  9  4  1  8                       |  scores = q @ k^T           [16, 64]
    tokens            |tile|tile|tile|tile|tile|               |  online softmax
                      |- split 0 -|- split 1 -|                |  acc += weights @ v         [16, 128]
                                                               v
    one split:  out = acc / sum            several:  acc / sum and log2-sum-exp2 into memory, _merge adds them up

Each K and V is read once, by one program, for all query heads of its group. A sequence of n tokens moves
2 * n * num_kv_heads * head_size * bytes and takes 4 * n * num_heads * head_size operations: for Qwen3-0.6B in
bfloat16 (16 heads on 8 KV heads of 128), 4,096 bytes and 8,192 operations a token, 2 a byte. An H200 could do 180 in
that time (790 TFLOP/s over 4.3 TB/s), so the kernel waits for memory. tl.dot demands at least 16 rows, so 14 of them
are padding here; they cost nothing, because memory is the limit.

Tiles, for 16 bits and heads of 128. To keep 4.3 TB/s busy over a latency of some 0.8 us, 3.4 MB must be under way, 26
KB for each of the 132 SMs. A tile of 64 tokens has 16 KB of K and as much of V. An SM holds three programs: each takes
72 KB of its 227 KB of shared memory, for two tiles and the block numbers of more, and at most 160 of its 65,536
registers for each of 128 threads. While one tile is multiplied, the next is on its way: 96 KB for an SM's programs.
Larger tiles would not load faster, and short sequences would leave more of their last tile empty.

Splits: a batch of 1 with 8 KV heads is 8 programs for 132 SMs. Then each sequence's tokens are divided among several
programs (splits.py). Their number depends on shapes alone, never on lengths, so that a CUDA graph may replay the
launch. Each program finds its part from seq_lens when it runs; a program without a part ends at once. A split's
intermediate result is (head_size + 1) float32 for each head, written and read once: 1,032 bytes for the two heads of a
group, against 256 KiB of K and V in 512 tokens.

vLLM: v1/attention/ops/triton_decode_attention.py
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from folovllm.attention.kernels.tile import (
    INTERPRETED,
    LOG2E,
    STAGES,
    attend_keys,
    check_shapes,
    padded_head_size,
    product_size,
    rows_mask,
    tile_tokens,
)  # fmt: skip
from folovllm.attention.splits import MAX_SPLITS, PLACES, PROGRAMS_PER_SM, choose_splits
from folovllm.utils.dependent_launch import dependent_launch, wait_for_kernel_before
from folovllm.utils.gpus import gpu_of

FEW_SPLITS = 8  # _merge reads all splits of a head at once, and one for up to 64 would read nothing most of the time


@triton.jit
def _tokens_per_split(seq_len, splits, BLOCK_N: tl.constexpr):
    """As splits.py says: a whole number of tiles, the same for all splits. Those behind the last token have none."""
    return tl.cdiv(tl.cdiv(seq_len, splits), BLOCK_N) * BLOCK_N


# What changes from step to step must not be a part of the kernel, or it would be compiled anew while it serves.
@triton.jit(
    do_not_specialize=["stride_table", "splits"],
    do_not_specialize_on_alignment=["tables_ptr", "seq_lens_ptr", "order_ptr"],
)
def _paged_decode(
    q_ptr, k_ptr, v_ptr, out_ptr, partial_ptr, lse_ptr, tables_ptr, seq_lens_ptr, order_ptr, scale, splits,
    stride_q, stride_qh, stride_out, stride_outh, stride_table,
    stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, HEAD_SIZE: tl.constexpr, HEAD_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr, ORDERED: tl.constexpr,
    INTERPRETED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_kernel_before(DEPENDENT)
    # KV heads first: neighbours in the grid run together, and their reads are neighbours in memory. Sequences last: all
    # splits of the longest start first.
    kv_head, split, seq = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    if ORDERED:
        seq = tl.load(order_ptr + seq).to(tl.int64)
    seq_len = tl.load(seq_lens_ptr + seq)
    start, end = 0, seq_len
    if SPLIT:
        per_split = _tokens_per_split(seq_len, splits, BLOCK_N)
        start = split * per_split
        end = tl.minimum(start + per_split, seq_len)
        if start >= end:
            return  # _merge computes the same bounds, so it reads nothing of this split

    rows = tl.arange(0, GROUP_PAD)
    heads = kv_head * GROUP + rows
    columns = tl.arange(0, HEAD_PAD)
    mask = rows_mask(rows < GROUP, HEAD_SIZE, HEAD_PAD)
    q = tl.load(q_ptr + seq * stride_q + (heads * stride_qh)[:, None] + columns[None, :], mask=mask, other=0.0)
    last_seen = tl.zeros([GROUP_PAD], tl.int32) + seq_len  # the query of a decode is the last token: it sees every key
    running_max, running_sum, acc = attend_keys(
        q, start, end, last_seen, scale, k_ptr + kv_head * stride_kh, v_ptr + kv_head * stride_vh,
        tables_ptr + seq * stride_table, stride_kb, stride_kt, stride_vb, stride_vt,
        BLOCK_SIZE, BLOCK_N, HEAD_SIZE, HEAD_PAD, INTERPRETED,
    )  # fmt: skip
    result = acc / running_sum[:, None]

    if SPLIT:
        num_heads = tl.num_programs(0) * GROUP
        place = (seq * num_heads + heads) * splits + split
        tl.store(partial_ptr + (place * HEAD_SIZE)[:, None] + columns[None, :], result, mask=mask)
        tl.store(lse_ptr + place, running_max + tl.log2(running_sum), mask=rows < GROUP)
    else:
        out_ptrs = out_ptr + seq * stride_out + (heads * stride_outh)[:, None] + columns[None, :]
        tl.store(out_ptrs, result.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["splits"], do_not_specialize_on_alignment=["seq_lens_ptr"])
def _merge(
    partial_ptr, lse_ptr, out_ptr, seq_lens_ptr, splits, stride_out, stride_outh,
    HEAD_SIZE: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_N: tl.constexpr, MOST_SPLITS: tl.constexpr,
):  # fmt: skip
    """One head of one sequence: the mean of its splits' results, weighted by the sums of their softmax.

    Split s divided its result by its own sum, 2^lse[s]. The sum over all tokens is the sum of these, so the weight of
    split s is 2^lse[s] / sum of 2^lse. Dividing numerator and denominator by the largest keeps them in range.
    """
    head, seq = tl.program_id(0), tl.program_id(1).to(tl.int64)
    seq_len = tl.load(seq_lens_ptr + seq)
    split, columns = tl.arange(0, MOST_SPLITS), tl.arange(0, HEAD_PAD)
    used = split * _tokens_per_split(seq_len, splits, BLOCK_N) < seq_len  # the other splits have written nothing
    used = used & (split < splits)
    places = (seq * tl.num_programs(0) + head) * splits + split
    lse = tl.load(lse_ptr + places, mask=used, other=-float("inf"))
    weights = tl.exp2(lse - tl.max(lse, 0))
    partial_ptrs = partial_ptr + (places * HEAD_SIZE)[:, None] + columns[None, :]
    partial = tl.load(partial_ptrs, mask=rows_mask(used, HEAD_SIZE, HEAD_PAD), other=0.0)
    result = tl.sum(partial * weights[:, None], 0) / tl.sum(weights, 0)
    out_ptrs = out_ptr + seq * stride_out + head * stride_outh + columns
    tl.store(out_ptrs, result.to(out_ptr.dtype.element_ty), mask=columns < HEAD_SIZE)


def decode_warps(group_pad: int, head_pad: int, element_size: int, from_8_bits: bool = False) -> int:
    """Float32 is multiplied from the threads' registers: more than 16 rows of it need the registers of twice as many
    threads. So do 16 rows of the largest heads where K and V are converted from 8 bits, which takes registers too."""
    return 8 if element_size > 2 and (group_pad > 16 or (from_8_bits and head_pad > 128)) else 4


@cache
def places_of(device: torch.device) -> int:
    """Programs that run at once: an L4 has 58 multiprocessors."""
    on_gpu = device.type == "cuda"
    return torch.cuda.get_device_properties(device).multi_processor_count * PROGRAMS_PER_SM if on_gpu else PLACES


def paged_decode(
    q: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, block_tables: torch.Tensor,
    seq_lens: torch.Tensor, scale: float, *, order: torch.Tensor | None = None, out: torch.Tensor | None = None,
    num_splits: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """Attention of q [num_seqs, num_heads, head_size], one query per sequence, which sees all of its keys.

    q and out may be strided views, contiguous inside a head; their dtype may differ from the cache's.
    key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_size], contiguous inside a head; float32,
        float16, bfloat16, or 8 bits that tile.py reads and multiplies in q's dtype. Any block_size. head_size up to
        256, padded to a power of two.
    block_tables: [num_seqs, max_blocks] int32.  seq_lens: [num_seqs] int32, each 1 at least.
    order: [num_seqs] int32, each sequence once: in it they start, fast with the longest first. None: as in q.
    out: where to write; made if None.  num_splits: at most MAX_SPLITS; chosen from the shapes if None.

    Raises:
        ValueError: a shape or a stride is not as said above.
    """
    num_seqs, num_heads, head_size = q.shape
    block_size, num_kv_heads = check_shapes(q, key_cache, value_cache, block_tables)
    head_pad = padded_head_size(head_size)
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    if num_seqs == 0:
        return out
    itemsize = product_size(q, key_cache)
    gpu = gpu_of(q.device)
    block_n = tile_tokens(head_pad, itemsize, gpu.has_small_tiles)
    group, max_len = num_heads // num_kv_heads, block_tables.shape[1] * block_size
    splits = num_splits or choose_splits(num_seqs, num_kv_heads, max_len, block_n, places_of(q.device))
    group_pad = max(16, triton.next_power_of_2(group))
    partial, lse = out, out  # not touched by a single split
    if splits > 1:
        partial = torch.empty(num_seqs, num_heads, splits, head_size, dtype=torch.float32, device=q.device)
        lse = torch.empty(num_seqs, num_heads, splits, dtype=torch.float32, device=q.device)
    _paged_decode[(num_kv_heads, splits, num_seqs)](
        q, key_cache, value_cache, out, partial, lse, block_tables, seq_lens, seq_lens if order is None else order,
        scale * LOG2E, splits,
        q.stride(0), q.stride(1), out.stride(0), out.stride(1), block_tables.stride(0),
        *key_cache.stride()[:3], *value_cache.stride()[:3],
        GROUP=group, GROUP_PAD=group_pad, HEAD_SIZE=head_size, HEAD_PAD=head_pad,
        BLOCK_SIZE=block_size, BLOCK_N=block_n, SPLIT=splits > 1, ORDERED=order is not None, INTERPRETED=INTERPRETED,
        **dependent_launch(q.device),
        num_warps=decode_warps(group_pad, head_pad, itemsize, key_cache.element_size() == 1),
        num_stages=gpu.stages(STAGES),
    )  # fmt: skip
    if splits > 1:
        _merge[(num_heads, num_seqs)](
            partial, lse, out, seq_lens, splits, out.stride(0), out.stride(1),
            HEAD_SIZE=head_size, HEAD_PAD=head_pad, BLOCK_N=block_n,
            MOST_SPLITS=FEW_SPLITS if splits <= FEW_SPLITS else MAX_SPLITS, num_warps=4,
        )  # fmt: skip
    return out
