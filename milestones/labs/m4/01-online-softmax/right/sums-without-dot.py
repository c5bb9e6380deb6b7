@triton.jit
def attend_tile(
    q, running_max, running_sum, acc,
    start, end, last_seen, scale,
    k_ptr, v_ptr, table_ptr,
    stride_kb, stride_kt, stride_vb, stride_vt,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_SIZE: tl.constexpr, HEAD_PAD: tl.constexpr,
):  # fmt: skip
    positions = start + tl.arange(0, BLOCK_N)
    safe = tl.minimum(positions, end - 1)  # instead of a mask: the last token is read again, and then weighs nothing
    columns = tl.arange(0, HEAD_PAD)
    padding = (columns < HEAD_SIZE)[None, :]
    block = tl.load(table_ptr + safe // BLOCK_SIZE).to(tl.int64)[:, None]
    offset = (safe % BLOCK_SIZE)[:, None]
    k = tl.load(k_ptr + block * stride_kb + offset * stride_kt + columns[None, :], mask=padding, other=0.0)
    v = tl.load(v_ptr + block * stride_vb + offset * stride_vt + columns[None, :], mask=padding, other=0.0)
    scores = tl.sum(q[:, None, :] * k.to(q.dtype)[None, :, :], 2) * scale
    hidden = (positions >= end)[None, :] | (positions[None, :] > last_seen[:, None])
    scores += tl.where(hidden, -float("inf"), 0.0)
    top = tl.max(scores, 1)
    new_max = tl.where(top > running_max, top, running_max)
    weights = tl.exp2(scores - new_max[:, None])
    seen = tl.sum(weights[:, :, None] * v.to(q.dtype)[None, :, :], 1)
    shrink = tl.exp2(running_max - new_max)
    return new_max, running_sum * shrink + tl.sum(weights, 1), acc * shrink[:, None] + seen
