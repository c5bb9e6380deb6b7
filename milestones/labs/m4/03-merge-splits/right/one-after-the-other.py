@triton.jit(do_not_specialize=["splits"], do_not_specialize_on_alignment=["seq_lens_ptr"])
def _merge(
    partial_ptr, lse_ptr, out_ptr, seq_lens_ptr, splits, stride_out, stride_outh,
    HEAD_SIZE: tl.constexpr, HEAD_PAD: tl.constexpr, BLOCK_N: tl.constexpr, MOST_SPLITS: tl.constexpr,
):  # fmt: skip
    head, seq = tl.program_id(0), tl.program_id(1).to(tl.int64)
    seq_len = tl.load(seq_lens_ptr + seq)
    per_split = _tokens_per_split(seq_len, splits, BLOCK_N)
    columns = tl.arange(0, HEAD_PAD)
    first = (seq * tl.num_programs(0) + head) * splits
    top = tl.load(lse_ptr + first)  # the first split has tokens always
    total = top * 0.0 + 1.0
    acc = tl.load(partial_ptr + first * HEAD_SIZE + columns, mask=columns < HEAD_SIZE, other=0.0)
    for split in tl.static_range(1, MOST_SPLITS):
        used = split * per_split < seq_len
        lse = tl.load(lse_ptr + first + split, mask=used, other=-float("inf"))
        place = (first + split) * HEAD_SIZE
        partial = tl.load(partial_ptr + place + columns, mask=used & (columns < HEAD_SIZE), other=0.0)
        new_top = tl.maximum(top, lse)
        total = total * tl.exp2(top - new_top) + tl.exp2(lse - new_top)
        acc = acc * tl.exp2(top - new_top) + partial * tl.exp2(lse - new_top)
        top = new_top
    out_ptrs = out_ptr + seq * stride_out + head * stride_outh + columns
    tl.store(out_ptrs, (acc / total).to(out_ptr.dtype.element_ty), mask=columns < HEAD_SIZE)
