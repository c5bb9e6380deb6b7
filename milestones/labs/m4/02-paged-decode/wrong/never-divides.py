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
    result = acc

    if SPLIT:
        num_heads = tl.num_programs(0) * GROUP
        place = (seq * num_heads + heads) * splits + split
        tl.store(partial_ptr + (place * HEAD_SIZE)[:, None] + columns[None, :], result, mask=mask)
        tl.store(lse_ptr + place, running_max + tl.log2(running_sum), mask=rows < GROUP)
    else:
        out_ptrs = out_ptr + seq * stride_out + (heads * stride_outh)[:, None] + columns[None, :]
        tl.store(out_ptrs, result.to(out_ptr.dtype.element_ty), mask=mask)
