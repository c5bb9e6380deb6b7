@triton.jit
def _add_line(
    acc, line, words_at, scale_at, offset_at, x_at, in_features, out_features,
    BITS: tl.constexpr, GROUP: tl.constexpr, PIECE: tl.constexpr, EVEN: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """acc [outputs, rows] with what a line's columns add to it. The places are those of line 0."""
    NUMBERS: tl.constexpr = 32 // BITS
    TOGETHER: tl.constexpr = min(GROUP // PIECE, NUMBERS)  # pieces of a line that share a scale
    HALF: tl.constexpr = NUMBERS // 2
    low = tl.load(words_at + line * (out_features * PIECE))  # below 2^31: 8 GiB of words
    high = low >> 16
    for part in tl.static_range(NUMBERS // TOGETHER):
        first = line * NUMBERS + part * TOGETHER
        group = first * PIECE // GROUP * out_features
        offset = tl.load(offset_at + group).to(tl.float32)
        total = tl.zeros([acc.shape[0], acc.shape[1]], tl.float32)
        for n in tl.static_range(TOGETHER):
            column = (first + n) * PIECE
            if EVEN:
                x = tl.load(x_at + column)  # [columns, rows]
            else:
                x = tl.load(x_at + column, mask=(column + tl.arange(0, PIECE) < in_features)[:, None], other=0.0)
            words = low if part * TOGETHER + n < HALF else high
            weight = _numbers(words, offset, (part * TOGETHER + n) % HALF * BITS, BITS)
            if INTERPRETED:  # its products take the raw bits of bfloat16
                x = x.to(tl.float32)
            total = tl.dot(weight.to(x.dtype), x, total, input_precision="ieee")
        acc += total
    return acc
