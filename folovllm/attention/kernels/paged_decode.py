"""paged_decode: attention of few queries per sequence over its cached K and V, read through the block table.

    program (KV head h, sequence b, split s)            the queries' heads of group h, padded to 16 rows
                                                        q  [16, 128]
    block table of b    7  2  9  4  1  8                       |  scores = q @ k^T           [16, 64]
    tokens            |tile|tile|tile|tile|tile|               |  online softmax
                      |- split 0 -|- split 1 -|                |  acc += weights @ v         [16, 128]
                                                               v
    one split:  out = acc / sum            several:  acc / sum and log2-sum-exp2 into memory, the last one adds up

Each K and V is read once, by one program, for all query heads of its group and all queries: a sequence's drafts are
queries, and each of their rows sees the keys up to its own. With one query, n tokens are 2 * n * num_kv_heads *
head_size numbers to move and 4 * n * num_heads * head_size operations: for Qwen3-0.6B in bfloat16 (16 heads on 8 KV
heads of 128), 4,096 bytes and 8,192 operations a token, 2 a byte. An H200 could do 180 in that time (790 TFLOP/s over
4.3 TB/s), so the kernel waits for memory. tl.dot demands at least 16 rows. So 14 of them are padding for one query, and
8 queries take no longer.

Tiles, for 16 bits and heads of 128. To keep 4.3 TB/s busy over a latency of some 0.8 us, 3.4 MB must be under way, 26
KB for each of the 132 SMs. A tile of 64 tokens has 16 KB of K and as much of V. An SM holds three programs: each takes
72 KB of its 227 KB of shared memory, for two tiles and the block numbers of more, and at most 168 of its 65,536
registers for each of 128 threads. While one tile is multiplied, the next is on its way: 96 KB for an SM's programs.
Larger tiles would not load faster, and short sequences would leave more of their last tile empty.

Splits: a batch of 1 with 8 KV heads is 8 programs for 132 SMs. Then each sequence's tokens are divided among several
programs (splits.py). Their number depends on shapes alone, never on lengths, so that a CUDA graph may replay the
launch. Each program finds its part from seq_lens when it runs; a program without a part ends at once. A split's
intermediate result is (head_size + 1) float32 for each head, written and read once: 1,032 bytes for the two heads of a
group, against 256 KiB of K and V in 512 tokens. The programs of a sequence and KV head count themselves when they have
written it. The last one, whichever it is, adds it up in the order of the splits.

With FusedRope a program rotates its queries itself, as norm_rotary.py does it: a launch less in each layer. The one
that has the newest key rotates that, too, and puts it and its value into the cache. It does not wait to read them from
there: with the key in its registers each row's sums begin.

A layer with a window has the keys from the first query's first one on, and splits divide these. A sink is in the first
split.

vLLM: v1/attention/ops/triton_decode_attention.py
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from folovllm.attention.backend import NO_EXTRAS, AttentionExtras, FusedRope
from folovllm.attention.kernels.fused_rope import rotated, score_newest
from folovllm.attention.kernels.tile import (
    INTERPRETED,
    LOG2E,
    STAGES,
    attend_keys,
    check_shapes,
    load_sinks,
    padded_head_size,
    product_size,
    rows_mask,
    tile_tokens,
)  # fmt: skip
from folovllm.attention.splits import MAX_SPLITS, PLACES, PROGRAMS_PER_SM, choose_splits
from folovllm.utils.dependent_launch import dependent_launch, wait_for_kernel_before
from folovllm.utils.gpus import gpu_of

FEW_SPLITS = 8  # _merge reads all splits of a head at once, and one for up to 64 would read nothing most of the time
SOME_SPLITS: tl.constexpr = tl.constexpr(16)  # that a short sequence uses of many; known when the kernel runs
MOST_ROWS = 16  # of a tile: queries times the heads of a group. With larger groups there is one query


@triton.jit
def _tokens_per_split(seq_len, splits, BLOCK_N: tl.constexpr):
    """As splits.py says: a whole number of tiles, the same for all splits. Those behind the last token have none."""
    return tl.cdiv(tl.cdiv(seq_len, splits), BLOCK_N) * BLOCK_N


# What changes from step to step must not be a part of the kernel, or it would be compiled anew while it serves.
@triton.jit(
    do_not_specialize=["stride_table", "splits", "ordered"],
    do_not_specialize_on_alignment=["tables_ptr", "starts_ptr", "seq_lens_ptr", "order_ptr", "sinks_ptr", "slots_ptr"],
)
def _paged_decode(
    q_ptr, k_ptr, v_ptr, out_ptr, partial_ptr, lse_ptr, counters_ptr, tables_ptr, starts_ptr, seq_lens_ptr, order_ptr,
    sinks_ptr, scale, splits, ordered,
    stride_q, stride_qh, stride_out, stride_outh, stride_table,
    stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    weight_ptr, cos_ptr, sin_ptr, slots_ptr, eps, stride_angle,
    GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD_SIZE: tl.constexpr, HEAD_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr, MOST_SPLITS: tl.constexpr,
    WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, FUSED: tl.constexpr, NORM: tl.constexpr,
    INTERPRETED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_kernel_before(DEPENDENT)
    # KV heads first: neighbours in the grid run together, and their reads are neighbours in memory. Sequences last: all
    # splits of the longest start first.
    kv_head, split, seq = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    if ordered:
        seq = tl.load(order_ptr + seq).to(tl.int64)
    seq_len, first = tl.load(seq_lens_ptr + seq), tl.load(starts_ptr + seq).to(tl.int64)
    num_rows = (tl.load(starts_ptr + seq + 1) - first).to(tl.int32) * GROUP
    begin = 0
    if WINDOW is not None:
        begin = tl.maximum(seq_len - num_rows // GROUP - WINDOW + 1, 0)
    start, end = begin, seq_len
    per_split = seq_len
    if SPLIT:
        per_split = _tokens_per_split(seq_len - begin, splits, BLOCK_N)
        start = begin + split * per_split
        end = tl.minimum(start + per_split, seq_len)
    if start >= end:
        return  # nobody waits for it

    rows, columns = tl.arange(0, ROWS), tl.arange(0, HEAD_PAD)
    tokens, heads = first + rows // GROUP, kv_head * GROUP + rows % GROUP
    mask = rows_mask(rows < num_rows, HEAD_SIZE, HEAD_PAD)
    if FUSED:  # one query
        cos_ptr += first * stride_angle
        sin_ptr += first * stride_angle
        q_ptrs = q_ptr + (tokens * stride_q + heads * stride_qh)[:, None]
        q = rotated(q_ptrs, mask, columns, weight_ptr, cos_ptr, sin_ptr, eps, HEAD_SIZE, NORM)
        slot = tl.load(slots_ptr + first).to(tl.int64)
        block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        newest, newest_v = score_newest(
            q, end == seq_len, scale, q_ptr + first * stride_q + (tl.num_programs(0) * GROUP + kv_head) * stride_qh,
            tl.num_programs(0) * stride_qh,
            k_ptr + block * stride_kb + offset * stride_kt + kv_head * stride_kh,
            v_ptr + block * stride_vb + offset * stride_vt + kv_head * stride_vh,
            weight_ptr + HEAD_SIZE, cos_ptr, sin_ptr, eps, HEAD_SIZE, HEAD_PAD, NORM, SOFT_CAP,
        )  # fmt: skip
        end = tl.minimum(end, seq_len - 1)
    else:
        newest, newest_v = None, None
        q = tl.load(q_ptr + (tokens * stride_q + heads * stride_qh)[:, None] + columns[None, :], mask=mask, other=0.0)
    last_seen = seq_len - num_rows // GROUP + rows // GROUP
    sinks = None
    if sinks_ptr is not None:
        sinks = load_sinks(sinks_ptr, heads, split == 0)
    # A draft in front of this split's tokens sees none of them, but attend_tile() wants the first to be seen.
    running_max, running_sum, acc = attend_keys(
        q, start, start, end, tl.maximum(last_seen, start), sinks, scale,
        k_ptr + kv_head * stride_kh, v_ptr + kv_head * stride_vh,
        tables_ptr + seq * stride_table, stride_kb, stride_kt, stride_vb, stride_vt,
        BLOCK_SIZE, BLOCK_N, HEAD_SIZE, HEAD_PAD, WINDOW, SOFT_CAP, INTERPRETED, newest, newest_v,
    )  # fmt: skip
    result = acc / running_sum[:, None]

    if SPLIT:
        num_heads = tl.num_programs(0) * GROUP
        place = (tokens * num_heads + heads) * splits + split
        lse = tl.where(last_seen >= start, running_max + tl.log2(running_sum), -float("inf"))
        tl.store(partial_ptr + (place * HEAD_SIZE)[:, None] + columns[None, :], result, mask=mask)
        tl.store(lse_ptr + place, lse, mask=rows < num_rows)
        # Release: every thread has written before the barrier, and the one that counts comes behind it, so whoever sees
        # the count sees all of it. Acquire: the last one to count sees what all the others have written.
        tl.debug_barrier()
        used = tl.cdiv(seq_len - begin, per_split)
        counter = counters_ptr + seq * tl.num_programs(0) + kv_head
        if tl.atomic_add(counter, 1, sem="acq_rel") == used - 1:
            tl.store(counter, 0)  # for the next launch
            if used <= SOME_SPLITS:
                _merge(
                    partial_ptr, lse_ptr, out_ptr, num_rows, first, kv_head, used, splits, stride_out, stride_outh,
                    GROUP, GROUP if FUSED else ROWS, HEAD_SIZE, HEAD_PAD, min(MOST_SPLITS, SOME_SPLITS),
                )  # fmt: skip
            elif MOST_SPLITS > SOME_SPLITS:
                _merge(
                    partial_ptr, lse_ptr, out_ptr, num_rows, first, kv_head, used, splits, stride_out, stride_outh,
                    GROUP, GROUP if FUSED else ROWS, HEAD_SIZE, HEAD_PAD, MOST_SPLITS,
                )  # fmt: skip
    else:
        out_ptrs = out_ptr + (tokens * stride_out + heads * stride_outh)[:, None] + columns[None, :]
        tl.store(out_ptrs, result.to(out_ptr.dtype.element_ty), mask=mask)


@triton.constexpr_function
def merged_at_once(rows, head_pad, most_splits):
    """Rows whose splits are read at once: 8,192 numbers in the registers of 128 threads."""
    return max(1, min(1 << (rows - 1).bit_length(), 8192 // (head_pad * most_splits)))


@triton.jit
def _merge(
    partial_ptr, lse_ptr, out_ptr, num_rows, first, kv_head, used, splits, stride_out, stride_outh,
    GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD_SIZE: tl.constexpr, HEAD_PAD: tl.constexpr, MOST_SPLITS: tl.constexpr,
):  # fmt: skip
    """Of each row: the mean of its splits' results, weighted by the sums of their softmax. All splits are added up in
    the same order, whichever came last.

    Split s divided its result by its own sum, 2^lse[s]. The sum over all tokens is the sum of these, so the weight of
    split s is 2^lse[s] / sum of 2^lse. Dividing numerator and denominator by the largest keeps them in range.
    """
    split, columns, row = tl.arange(0, MOST_SPLITS), tl.arange(0, HEAD_PAD), 0
    while row < num_rows:
        rows = row + tl.arange(0, merged_at_once(ROWS, HEAD_PAD, MOST_SPLITS))
        tokens, heads = first + rows // GROUP, kv_head * GROUP + rows % GROUP
        places = ((tokens * (tl.num_programs(0) * GROUP) + heads) * splits)[:, None] + split[None, :]
        mask = (rows < num_rows)[:, None] & (split < used)[None, :]  # the other splits have written nothing
        lse = tl.load(lse_ptr + places, mask=mask, other=-1e30)  # finite: a row that is not there has nothing else
        weights = tl.exp2(lse - tl.max(lse, 1)[:, None])
        partial_ptrs = partial_ptr + (places * HEAD_SIZE)[:, :, None] + columns[None, None, :]
        partial = tl.load(partial_ptrs, mask=mask[:, :, None] & (columns < HEAD_SIZE)[None, None, :], other=0.0)
        result = tl.sum(partial * weights[:, :, None], 1) / tl.sum(weights, 1)[:, None]
        out_ptrs = out_ptr + (tokens * stride_out + heads * stride_outh)[:, None] + columns[None, :]
        tl.store(out_ptrs, result.to(out_ptr.dtype.element_ty), mask=rows_mask(rows < num_rows, HEAD_SIZE, HEAD_PAD))
        row += merged_at_once(ROWS, HEAD_PAD, MOST_SPLITS)


def decode_warps(rows: int, head_pad: int, element_size: int, from_8_bits: bool = False) -> int:
    """Float32 is multiplied from the threads' registers: more than 16 rows of it need the registers of twice as many
    threads. So do 16 rows of the largest heads where K and V are converted from 8 bits, which takes registers too."""
    return 8 if element_size > 2 and (rows > 16 or (from_8_bits and head_pad > 128)) else 4


@cache
def places_of(device: torch.device) -> int:
    """Programs that run at once: an L4 has 58 multiprocessors."""
    on_gpu = device.type == "cuda"
    return torch.cuda.get_device_properties(device).multi_processor_count * PROGRAMS_PER_SM if on_gpu else PLACES


def most_queries(group_size: int) -> int:
    """Of a sequence, in one tile."""
    return max(1, MOST_ROWS // group_size)


def register_limit(rows: int, head_pad: int, element_size: int, small_tiles: bool) -> dict[str, int]:
    """Of a thread, for three programs on a multiprocessor (splits.py). Left alone, compilers take some more."""
    fits = rows == MOST_ROWS and head_pad <= 128 and element_size == 2 and not small_tiles
    return {"maxnreg": 65536 // (3 * 128) & -8} if fits else {}


def paged_decode(
    q: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, block_tables: torch.Tensor,
    seq_lens: torch.Tensor, scale: float, *, query_start_loc: torch.Tensor | None = None,
    order: torch.Tensor | None = None, out: torch.Tensor | None = None, num_splits: int | None = None,
    counters: torch.Tensor | None = None, extras: AttentionExtras = NO_EXTRAS, fused: FusedRope | None = None,
) -> torch.Tensor:  # fmt: skip
    """Attention of q [num_tokens, num_heads, head_size], a few queries per sequence at the end of its keys, of which
    each sees those up to its own.

    q, key_cache, value_cache, out, extras: as paged_prefill() takes them.
    block_tables: [num_seqs, max_blocks] int32.  seq_lens: [num_seqs] int32. 0: a place in a CUDA graph for a sequence
        that is not there, whose row of out stays as it is.
    query_start_loc: [num_seqs + 1] int32, for sequences of up to most_queries() each; if None, of one.
    order: [num_seqs] int32, each sequence once: in it they start, fast with the longest first. None, and where all
        programs run at once: as in q.
    num_splits: at most MAX_SPLITS; chosen from the shapes if None.
    counters: int32, one for each sequence and KV head that is split, zero before and after: here its programs count
        themselves. One launch at a time may have them. Made if None.
    fused: q is as the stacked projection leaves it, a view with k's and v's heads behind its own; one query a sequence.

    Raises:
        ValueError: a shape or a stride is not as said above.
    """
    (_, num_heads, head_size), num_seqs = q.shape, seq_lens.shape[0]
    block_size, num_kv_heads = check_shapes(q, key_cache, value_cache, block_tables)
    head_pad = padded_head_size(head_size)
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    if num_seqs == 0:
        return out
    if query_start_loc is None:
        query_start_loc = torch.arange(num_seqs + 1, dtype=torch.int32, device=q.device)
    itemsize = product_size(q, key_cache)
    gpu = gpu_of(q.device)
    small = gpu.has_small_tiles
    block_n = tile_tokens(head_pad, itemsize, small)
    group, max_len = num_heads // num_kv_heads, block_tables.shape[1] * block_size
    max_len = min(max_len, extras.sliding_window or max_len)
    splits = num_splits or choose_splits(num_seqs, num_kv_heads, max_len, block_n, places_of(q.device))
    rows = max(MOST_ROWS, triton.next_power_of_2(group))
    ordered = order is not None and num_seqs * num_kv_heads * splits > places_of(q.device)
    weight, eps, cos, sin, slots = fused or (None, 0.0, q, q, seq_lens)  # not looked at without
    partial, lse = out, out  # not touched by a single split, as counters
    if splits > 1:
        partial = torch.empty(*q.shape[:2], splits, head_size, dtype=torch.float32, device=q.device)
        lse = torch.empty(*q.shape[:2], splits, dtype=torch.float32, device=q.device)
        if counters is None or len(counters) < num_seqs * num_kv_heads:
            counters = torch.zeros(num_seqs * num_kv_heads, dtype=torch.int32, device=q.device)
    _paged_decode[(num_kv_heads, splits, num_seqs)](
        q, key_cache, value_cache, out, partial, lse, seq_lens if counters is None else counters, block_tables,
        query_start_loc, seq_lens,
        seq_lens if order is None else order, extras.sinks, scale * LOG2E, splits, int(ordered),
        q.stride(0), q.stride(1), out.stride(0), out.stride(1), block_tables.stride(0),
        *key_cache.stride()[:3], *value_cache.stride()[:3],
        q if weight is None else weight, cos, sin, slots, eps, cos.stride(0),
        GROUP=group, ROWS=rows, HEAD_SIZE=head_size, HEAD_PAD=head_pad, BLOCK_SIZE=block_size, BLOCK_N=block_n,
        SPLIT=splits > 1, MOST_SPLITS=1 if splits == 1 else FEW_SPLITS if splits <= FEW_SPLITS else MAX_SPLITS,
        WINDOW=extras.sliding_window, SOFT_CAP=extras.logits_soft_cap, FUSED=fused is not None, NORM=weight is not None,
        INTERPRETED=INTERPRETED, **dependent_launch(q.device),
        num_warps=decode_warps(rows, head_pad, itemsize, key_cache.element_size() == 1), num_stages=gpu.stages(STAGES),
        **register_limit(rows, head_pad, itemsize, small),
    )  # fmt: skip
    return out
