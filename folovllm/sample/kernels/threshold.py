"""Where a row is cut: the search for a threshold by counting and summing, without a sort.

A sort would find more than is asked. Top-k and top-p only need the one value that divides the kept tokens from the
rest, and whether a value is too low can be seen by counting (or summing the weights of) what lies above it. So: a
bracket around the threshold, a few pivots in it, one pass over the row for all of them, and a bracket a fifth as wide.

    reach(t) = how many tokens (or how much weight) have key >= t      falls as t rises

    lo        p0        p1        p2        p3        hi
    |---------|---------|---------|---------|---------|
    reach: enough    enough    enough   too little           -> lo = p2, hi = p3

Keys are the logits' bits as integers in the same order. So a bracket can be split until its ends are neighbours, and
then the search is exact: all tokens with the threshold's key are equal. It often ends sooner, when only one token is
left inside.

The first 6 passes place their pivots evenly between values, the others evenly between keys: those are a logarithmic
scale, and most of them are far from the threshold. On 151,936 logits 3 to 8 passes are usual.

vLLM: v1/sample/ops/topk_topp_triton.py
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def key_of(x, SHIFT: tl.constexpr):
    """int32 in the order of the float32 `x`. SHIFT drops low bits that a narrower dtype leaves empty."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)  # -0.0 equals 0.0 and must not come below it
    # Negative floats grow with their bits: turn all but the sign around.
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits) >> SHIFT


@triton.jit
def value_of(key, SHIFT: tl.constexpr):
    """The float32 that has this key."""
    bits = key.to(tl.int32) << SHIFT
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    # The low bits that were dropped are zero in the logit; turning has set them where it is negative.
    return ((bits >> SHIFT) << SHIFT).to(tl.float32, bitcast=True)


@triton.jit
def load_row(row_ptr, start, vocab_size, BLOCK: tl.constexpr):
    """(columns [BLOCK], their logits in float32, which of them exist); what does not exist is -inf."""
    column = start + tl.arange(0, BLOCK)
    exists = column < vocab_size
    return column, tl.load(row_ptr + column, mask=exists, other=float("-inf")).to(tl.float32), exists


@triton.jit
def extremes(row_ptr, vocab_size, BLOCK: tl.constexpr):
    """(largest logit, smallest finite logit, how many are not -inf): the first pass over the row."""
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    floor = tl.full([BLOCK], float("inf"), tl.float32)
    possible = tl.zeros([BLOCK], tl.int32)
    start = 0
    while start < vocab_size:
        _, x, _ = load_row(row_ptr, start, vocab_size, BLOCK)
        is_possible = x > float("-inf")
        top = tl.maximum(top, x)
        floor = tl.minimum(floor, tl.where(is_possible, x, float("inf")))
        possible += is_possible.to(tl.int32)
        start += BLOCK
    return tl.max(top, axis=0), tl.min(floor, axis=0), tl.sum(possible, axis=0)


@triton.jit
def count_and_mass(row_ptr, vocab_size, top, beta, pivots, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """For each of 4 pivots: how many tokens have a key of at least that, and the sum of their weights (float64).

    A weight is exp2((logit - top) * beta), with beta = log2(e) / temperature: 1 for the likeliest token.

    Each lane adds up its own column in float32, some dozens of numbers; only the lanes' sums need float64. The four
    pivots are written out one by one. A tile [4, BLOCK] would have another layout over the threads than the loaded row,
    and every step of the loop would have to move the row there through shared memory.
    """
    index = tl.arange(0, 4)
    p0, p1 = tl.sum(tl.where(index == 0, pivots, 0), axis=0), tl.sum(tl.where(index == 1, pivots, 0), axis=0)
    p2, p3 = tl.sum(tl.where(index == 2, pivots, 0), axis=0), tl.sum(tl.where(index == 3, pivots, 0), axis=0)
    count0, mass0 = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.float32)
    count1, mass1 = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.float32)
    count2, mass2 = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.float32)
    count3, mass3 = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.float32)
    start = 0
    while start < vocab_size:
        _, x, exists = load_row(row_ptr, start, vocab_size, BLOCK)
        key = key_of(x, SHIFT)
        weight = tl.exp2((x - top) * beta)
        above0, above1 = (key >= p0) & exists, (key >= p1) & exists
        above2, above3 = (key >= p2) & exists, (key >= p3) & exists
        count0, mass0 = count0 + above0.to(tl.int32), mass0 + tl.where(above0, weight, 0.0)
        count1, mass1 = count1 + above1.to(tl.int32), mass1 + tl.where(above1, weight, 0.0)
        count2, mass2 = count2 + above2.to(tl.int32), mass2 + tl.where(above2, weight, 0.0)
        count3, mass3 = count3 + above3.to(tl.int32), mass3 + tl.where(above3, weight, 0.0)
        start += BLOCK
    count = tl.where(index < 2, tl.where(index < 1, tl.sum(count0, axis=0), tl.sum(count1, axis=0)),
                     tl.where(index < 3, tl.sum(count2, axis=0), tl.sum(count3, axis=0)))  # fmt: skip
    mass = tl.where(index < 2, tl.where(index < 1, _total(mass0), _total(mass1)),
                    tl.where(index < 3, _total(mass2), _total(mass3)))  # fmt: skip
    return count, mass


@triton.jit
def _total(mass):
    return tl.sum(mass.to(tl.float64), axis=0)


@triton.jit
def find_threshold(row_ptr, vocab_size, top, beta, lo, hi, count_lo, target, BY_MASS: tl.constexpr,
                   SHIFT: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Narrow [lo, hi) until the key whose tokens cross `target` (a count or a mass) is alone in it.

    On entry reach(lo) >= target > reach(hi) = 0, and `count_lo` tokens reach lo.

    Returns (lo, exact, count and mass of what lies at hi or above). With `exact`, hi = lo + 1 and lo is the key that
    crosses; else exactly the tokens that reach lo are kept.
    """
    count_hi = tl.zeros([], tl.int32)
    mass_hi = tl.zeros([], tl.float64)
    step = tl.arange(0, 4) + 1
    passes = 0
    more = hi - lo > 1
    while more:
        even = lo + (hi - lo) * step // 5
        bottom, ceiling = value_of(lo, SHIFT), value_of(hi - 1, SHIFT)
        by_value = bottom + (ceiling - bottom) * (step.to(tl.float32) / 5)
        by_value = tl.minimum(tl.maximum(key_of(by_value, SHIFT).to(tl.int64), lo), hi - 1)
        pivots = tl.where((passes < 6) & (hi - lo > 16), by_value, even)
        count, mass = count_and_mass(row_ptr, vocab_size, top, beta, pivots.to(tl.int32), SHIFT, BLOCK)
        if BY_MASS:
            enough = mass >= target
        else:
            enough = count >= target
        # Reach falls from pivot to pivot: the last with enough becomes lo, the first without becomes hi.
        lo = tl.maximum(lo, tl.max(tl.where(enough, pivots, lo), axis=0))
        hi = tl.minimum(hi, tl.min(tl.where(enough, hi, pivots), axis=0))
        count_lo = tl.minimum(count_lo, tl.min(tl.where(enough, count, count_lo), axis=0))
        count_hi = tl.maximum(count_hi, tl.max(tl.where(enough, count_hi, count), axis=0))
        mass_hi = tl.maximum(mass_hi, tl.max(tl.where(enough, mass_hi, mass), axis=0))
        passes += 1
        if BY_MASS:
            more = (hi - lo > 1) & (count_lo - count_hi > 1)
        else:
            more = (hi - lo > 1) & (count_lo != target)
    return lo, hi - lo == 1, count_hi, mass_hi


@triton.jit
def column_of_tie(row_ptr, vocab_size, value, rank, BLOCK: tl.constexpr):
    """The column of the logit that is the `rank`-th in the row, from 1, to equal `value`."""
    column = vocab_size
    seen = tl.zeros([], tl.int32)
    start = 0
    while (start < vocab_size) & (seen < rank):
        columns, x, _ = load_row(row_ptr, start, vocab_size, BLOCK)
        equal = (x == value).to(tl.int32)
        if seen + tl.sum(equal, axis=0) >= rank:
            column = tl.min(tl.where(seen + tl.cumsum(equal, axis=0) >= rank, columns, vocab_size), axis=0)
        seen += tl.sum(equal, axis=0)
        start += BLOCK
    return column
