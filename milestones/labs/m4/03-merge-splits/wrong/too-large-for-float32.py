@triton.jit(do_not_specialize=["splits"], do_not_specialize_on_alignment=["seq_lens_ptr"])
def _merge(
    partial_ptr, lse_ptr, out_ptr, seq_lens_ptr, splits, stride_out, stride_outh,
    HEAD_SIZE: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_N: tl.constexpr, MOST_SPLITS: tl.constexpr,
):  # fmt: skip
    head, seq = tl.program_id(0), tl.program_id(1).to(tl.int64)
    seq_len = tl.load(seq_lens_ptr + seq)
    split, columns = tl.arange(0, MOST_SPLITS), tl.arange(0, HEAD_PAD)
    used = split * _tokens_per_split(seq_len, splits, BLOCK_N) < seq_len
    used = used & (split < splits)
    places = (seq * tl.num_programs(0) + head) * splits + split
    lse = tl.load(lse_ptr + places, mask=used, other=-float("inf"))
    weights = tl.exp2(lse)
    partial_ptrs = partial_ptr + (places * HEAD_SIZE)[:, None] + columns[None, :]
    partial = tl.load(partial_ptrs, mask=rows_mask(used, HEAD_SIZE, HEAD_PAD), other=0.0)
    result = tl.sum(partial * weights[:, None], 0) / tl.sum(weights, 0)
    out_ptrs = out_ptr + seq * stride_out + head * stride_outh + columns
    tl.store(out_ptrs, result.to(out_ptr.dtype.element_ty), mask=columns < HEAD_SIZE)
