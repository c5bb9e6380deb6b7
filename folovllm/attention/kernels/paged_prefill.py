"""paged_prefill: causal attention of many queries per sequence over its cached K and V, read through the block table.

    one KV head of one sequence: 3 keys are from earlier steps, 4 queries (group of 2 heads: 8 rows) are new

                 keys  0 1 2 3 4 5 6         row   query   head of the group
    tile 0  row 0      x x x x . . .          0      0        0          The rows of a tile are (query, head) pairs, so
            row 1      x x x x . . .          1      0        1          one K tile serves the whole group: K and V are
            row 2      x x x x x . .          2      1        0          read once for it, not once for each head.
            row 3      x x x x x . .          3      1        1
    tile 1  row 4      x x x x x x .          4      2        0          x: key <= context + query, the causal rule.
            ..                                ..                         Keys behind a tile's last query are not read.

    program (tile, KV head):  q [BLOCK_M, 128] stays;  K, V [BLOCK_N, 128] pass;  acc [BLOCK_M, 128] float32

The grid follows from shapes alone, so that a CUDA graph may replay the launch: each sequence has room for its full
tiles and for one more, and a program finds its sequence in query_start_loc. Tiles of 8 rows, one row a query:

    queries       13                20                3
    begins with   0 // 8 + 0 = 0    13 // 8 + 1 = 2   33 // 8 + 2 = 6    tiles, of 36 // 8 + 3 = 7 in all
    tiles         0 1               2 3 4 (5)         6                  (5): nothing to do, the program ends at once

The queries' own K and V are in the cache already, so a prompt, a prompt's later chunk and a decode are one case:
queries at the last positions of a sequence. Sequences are flat, one after the other; query_start_loc says where.

A sequence with m queries and n keys takes 4 * num_heads * head_size * m * (n - m / 2) operations. Each tile of queries
reads the keys before it, 2 * head_size * bytes * n * m * group / BLOCK_M bytes in all for a KV head. With BLOCK_M = 128
rows a number of K or V takes part in 256 operations, 128 a byte in 16 bits. That is less than the 180 at which an
H200's matrix units (790 TFLOP/s) and its memory (4.3 TB/s) are balanced. But the tiles of a sequence run at the same
time and read the same keys. So most of these bytes come out of the L2 cache, and the kernel waits for arithmetic.

Tiles, for 16 bits and heads of 128: q 32 KB, and K and V of 64 tokens 32 KB. Of these there are three, for the matrix
units read them there: one is multiplied while two are on their way. 128.5 KB of an SM's 227 KB of shared
memory, block numbers included. acc and the scores are 64 + 32 KB of float32, in
registers: 8 warps hold them in some 185 registers a thread, so an SM has room for one program. Fewer rows than 64 would
not use Hopper's wide matrix instruction (64 rows for four warps), so smaller tiles are for short chunks alone, which
have no more rows.

vLLM: v1/attention/ops/triton_unified_attention.py
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from folovllm.attention.backend import NO_EXTRAS, AttentionExtras
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
)
from folovllm.utils.gpus import gpu_of


@triton.jit
def _first_tile(start, seq, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, SPARE: tl.constexpr):
    """The number of the tile with which a sequence begins. start: its first query."""
    return start * GROUP // BLOCK_M + seq * SPARE


# What changes from step to step must not be a part of the kernel, or it would be compiled anew while it serves: how
# wide the tables are; how many sequences there are; how many decodes come first, behind which the tables, starts and
# lengths begin here.
@triton.jit(
    do_not_specialize=["stride_table", "num_seqs"],
    do_not_specialize_on_alignment=["tables_ptr", "starts_ptr", "seq_lens_ptr", "sinks_ptr"],
)
def _paged_prefill(
    q_ptr, k_ptr, v_ptr, out_ptr, tables_ptr, starts_ptr, seq_lens_ptr, sinks_ptr, num_seqs, scale,
    stride_q, stride_qh, stride_out, stride_outh, stride_table,
    stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    GROUP: tl.constexpr, HEAD_SIZE: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BY_POSITION: tl.constexpr,
    WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    # The last tile of a sequence sees the most keys and takes the longest. It starts first, so that it does not run
    # alone at the end.
    number, kv_head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    SPARE: tl.constexpr = 2 if BY_POSITION else 1  # by position, the first and the last tile may both be in part empty
    skipped = tl.load(starts_ptr)
    low, high = tl.zeros([], tl.int32), tl.zeros([], tl.int32) + num_seqs
    while high - low > 1:  # the sequence is at `low` or behind it, and before `high`
        middle = (low + high) // 2
        begins = _first_tile(tl.load(starts_ptr + middle) - skipped, middle, GROUP, BLOCK_M, SPARE) <= number
        low, high = tl.where(begins, middle, low), tl.where(begins, high, middle)
    first_query = tl.load(starts_ptr + low)
    tile = number - _first_tile(first_query - skipped, low, GROUP, BLOCK_M, SPARE)
    num_queries = tl.load(starts_ptr + low + 1) - first_query
    seq = low.to(tl.int64)
    seq_len = tl.load(seq_lens_ptr + seq)
    context = seq_len - num_queries
    # By position, tiles begin where they would if all of the sequence's tokens were queries.
    before = 0
    if BY_POSITION:
        before = context * GROUP % BLOCK_M
    if tile * BLOCK_M >= num_queries * GROUP + before:
        return  # the sequence does not fill its tiles

    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M) - before
    queries = rows // GROUP
    columns = tl.arange(0, HEAD_PAD)
    mask = rows_mask((rows >= 0) & (queries < num_queries), HEAD_SIZE, HEAD_PAD)
    tokens = (first_query + queries).to(tl.int64)
    heads = kv_head * GROUP + rows % GROUP
    q = tl.load(q_ptr + (tokens * stride_q + heads * stride_qh)[:, None] + columns[None, :], mask=mask, other=0.0)
    # Behind the last query's own key.
    end = tl.minimum(context + ((tile + 1) * BLOCK_M - before - 1) // GROUP + 1, seq_len)
    last_seen = context + queries
    start, first, sinks = 0, 0, None
    if WINDOW is not None:
        # From what the first query sees on. By position, tiles of keys begin where they would for any other queries.
        first = tl.maximum(context + tl.maximum(tile * BLOCK_M - before, 0) // GROUP - WINDOW + 1, 0)
        start = first // BLOCK_N * BLOCK_N if BY_POSITION else first
    if sinks_ptr is not None:
        sinks = load_sinks(sinks_ptr, heads, rows >= 0)
    _, running_sum, acc = attend_keys(
        q, start, first, end, last_seen, sinks, scale, k_ptr + kv_head * stride_kh, v_ptr + kv_head * stride_vh,
        tables_ptr + seq * stride_table, stride_kb, stride_kt, stride_vb, stride_vt,
        BLOCK_SIZE, BLOCK_N, HEAD_SIZE, HEAD_PAD, WINDOW, SOFT_CAP, INTERPRETED,
    )  # fmt: skip
    result = acc / running_sum[:, None]
    out_ptrs = out_ptr + (tokens * stride_out + heads * stride_outh)[:, None] + columns[None, :]
    tl.store(out_ptrs, result.to(out_ptr.dtype.element_ty), mask=mask)


MOST_ROWS = (16, 64)
"""Of the small tiles and of the middling ones, for sequences with no more rows. With more they have the large tiles."""


def choose_tiles(
    rows: int, head_pad: int, element_size: int, small: bool = False, from_8_bits: bool = False
) -> tuple[int, int, int]:
    """(BLOCK_M, BLOCK_N, warps). rows: of the longest sequence, its queries times the heads of a group.
    small: on GPUs smaller than Hopper's (gpus.py). from_8_bits: K and V are converted, which takes registers."""
    few = tile_tokens(head_pad, element_size, small)
    if element_size > 2:
        # Matrix units would round float32. So the threads multiply it themselves, and a tile must fit their registers.
        if head_pad > 128:
            return (16, 16, 8) if from_8_bits else (16, 16, 4) if small else (32, 16, 8)
        block_m, block_n = 16 if rows <= MOST_ROWS[0] else 32, min(few, 32 if head_pad <= 32 else 16)
        return block_m, block_n, 8 if from_8_bits and block_m > 16 else 4
    if rows <= MOST_ROWS[0]:
        return 16, min(few, 64 if head_pad <= 128 else 16), 4
    if head_pad > 128:
        return 64, 16 if small else 32, 8
    return (64, few, 4) if rows <= MOST_ROWS[1] else (128, few, 8)


def paged_prefill(
    q: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, block_tables: torch.Tensor,
    query_start_loc: torch.Tensor, seq_lens: torch.Tensor, max_query_len: int, scale: float, *,
    out: torch.Tensor | None = None, batch_invariant: bool = False, extras: AttentionExtras = NO_EXTRAS,
) -> torch.Tensor:  # fmt: skip
    """Causal attention of q [num_tokens, num_heads, head_size], the sequences' queries one after the other.

    Query j of a sequence with m queries and n keys is at position n - m + j and sees keys 0 .. n - m + j.

    q and out may be strided views, contiguous inside a head; their dtype may differ from the cache's.
    key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_size], contiguous inside a head; float32,
        float16, bfloat16, or 8 bits that tile.py reads and multiplies in q's dtype. Any block_size. head_size up to
        256, padded to a power of two.
    block_tables: [num_seqs, max_blocks] int32.  seq_lens: [num_seqs] int32.
    query_start_loc: [num_seqs + 1] int32; tokens before its first or behind its last entry are left alone.
    max_query_len: no sequence has more queries.  out: where to write; made if None.
    batch_invariant: let a query's bits depend on its position and on what it sees alone: one tile for all batches, and
        a place in it that follows from the position.
    extras: of the layer; a window's blocks before the first key that a query sees are not read.

    Raises:
        ValueError: a shape or a stride is not as said above.
    """
    head_size, num_heads = q.shape[-1], q.shape[-2]
    block_size, num_kv_heads = check_shapes(q, key_cache, value_cache, block_tables)
    head_pad, group = padded_head_size(head_size), num_heads // num_kv_heads
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    num_seqs = seq_lens.shape[0]
    if num_seqs == 0 or max_query_len == 0:
        return out
    rows, gpu = max_query_len * group, gpu_of(q.device)
    block_m, block_n, num_warps = choose_tiles(
        MOST_ROWS[-1] if batch_invariant else rows, head_pad, product_size(q, key_cache), gpu.has_small_tiles,
        from_8_bits=key_cache.element_size() == 1,
    )  # fmt: skip
    # As _first_tile(), behind the last sequence.
    num_tiles = q.shape[0] * group // block_m + num_seqs * (2 if batch_invariant else 1)
    _paged_prefill[(num_tiles, num_kv_heads)](
        q, key_cache, value_cache, out, block_tables, query_start_loc, seq_lens, extras.sinks, num_seqs,
        scale * LOG2E, q.stride(0), q.stride(1), out.stride(0), out.stride(1), block_tables.stride(0),
        *key_cache.stride()[:3], *value_cache.stride()[:3],
        GROUP=group, HEAD_SIZE=head_size, HEAD_PAD=head_pad, BLOCK_SIZE=block_size,
        BLOCK_M=block_m, BLOCK_N=block_n, BY_POSITION=batch_invariant,
        WINDOW=extras.sliding_window, SOFT_CAP=extras.logits_soft_cap, INTERPRETED=INTERPRETED,
        num_warps=num_warps, num_stages=gpu.stages(STAGES),
    )  # fmt: skip
    return out
