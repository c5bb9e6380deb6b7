@triton.jit
def attend_tile(
    q, running_max, running_sum, acc,
    start, end, last_seen, scale,
    k_ptr, v_ptr, table_ptr,
    stride_kb, stride_kt, stride_vb, stride_vt,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_SIZE: tl.constexpr, HEAD_PAD: tl.constexpr,
):  # fmt: skip
    for place in tl.static_range(BLOCK_N):
        position = start + place
        there = position < end
        columns = tl.arange(0, HEAD_PAD)
        mask = (columns < HEAD_SIZE) & there
        block = tl.load(table_ptr + position // BLOCK_SIZE, mask=there, other=0).to(tl.int64)
        offset = position % BLOCK_SIZE
        k = tl.load(k_ptr + block * stride_kb + offset * stride_kt + columns, mask=mask, other=0.0).to(q.dtype)
        v = tl.load(v_ptr + block * stride_vb + offset * stride_vt + columns, mask=mask, other=0.0).to(q.dtype)
        score = tl.sum(q * k[None, :], 1) * scale
        score = tl.where((position <= last_seen) & there, score, -float("inf"))
        new_max = tl.maximum(running_max, score)
        weight, rescale = tl.exp2(score - new_max), tl.exp2(running_max - new_max)
        running_sum = running_sum * rescale + weight
        acc = acc * rescale[:, None] + weight[:, None] * v[None, :]
        running_max = new_max
    return running_max, running_sum, acc
