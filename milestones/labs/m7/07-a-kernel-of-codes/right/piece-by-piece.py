@triton.jit
def _add_line(
    acc, line, words_at, scale_at, offset_at, x_at, in_features, out_features,
    BITS: tl.constexpr, GROUP: tl.constexpr, PIECE: tl.constexpr, EVEN: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    NUMBERS: tl.constexpr = 32 // BITS
    words = tl.load(words_at + line * (out_features * PIECE))
    for n in tl.static_range(NUMBERS):
        column = (line * NUMBERS + n) * PIECE
        group = column // GROUP * out_features
        offset = tl.load(offset_at + group).to(tl.float32)
        weight = ((words >> (n * BITS)) & ((1 << BITS) - 1)).to(tl.float32) - offset[:, None]
        x = tl.load(x_at + column, mask=(column + tl.arange(0, PIECE) < in_features)[:, None], other=0.0)
        if INTERPRETED:
            x = x.to(tl.float32)
        acc += tl.dot(weight.to(x.dtype), x, input_precision="ieee") * tl.load(scale_at + group)[:, None]
    return acc
