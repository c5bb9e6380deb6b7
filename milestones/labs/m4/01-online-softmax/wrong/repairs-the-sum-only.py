@triton.jit
def attend_tile(
    q, running_max, running_sum, acc,
    start, end, last_seen, scale,
    k_ptr, v_ptr, table_ptr,
    stride_kb, stride_kt, stride_vb, stride_vt,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_SIZE: tl.constexpr, HEAD_PAD: tl.constexpr,
):  # fmt: skip
    positions = start + tl.arange(0, BLOCK_N)
    exists = positions < end
    columns = tl.arange(0, HEAD_PAD)
    mask = rows_mask(exists, HEAD_SIZE, HEAD_PAD)
    blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=exists, other=0).to(tl.int64)
    offsets = positions % BLOCK_SIZE
    k = tl.load(k_ptr + (blocks * stride_kb + offsets * stride_kt)[:, None] + columns[None, :], mask=mask, other=0.0)
    v = tl.load(v_ptr + (blocks * stride_vb + offsets * stride_vt)[:, None] + columns[None, :], mask=mask, other=0.0)
    k, v = k.to(q.dtype), v.to(q.dtype)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    visible = exists[None, :] & (positions[None, :] <= last_seen[:, None])
    scores = tl.where(visible, scores, -float("inf"))
    new_max = tl.maximum(running_max, tl.max(scores, 1))
    weights = tl.exp2(scores - new_max[:, None])
    rescale = tl.exp2(running_max - new_max)
    running_sum = running_sum * rescale + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")
    return new_max, running_sum, acc
