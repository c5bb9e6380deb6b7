"""Sampling a row in one program: temperature, top-k, top-p, min-p, and the exponential race; or the argmax.

    where filters are on   1 pass         largest and smallest logit
                           passes         top-k's threshold, counting                        where top-k is on
                           1 pass         mass of what top-k left (of everything without it) ┐
                           passes         top-p's threshold, summing                         ┘ where top-p is on
    always                 last pass      the race, without noise at temperature 0; can the row be drawn from?

The race in logarithms: of tokens that finish at Exp(1) / exp(x / T) the first is the one with the largest
x / T - log(Exp(1)), the Gumbel-max trick. No sum, no maximum is needed beforehand. So a row without filters is read
once, and nothing but the token leaves the program: no sorted copy, no probabilities, no mask.

The noise of a token depends on three numbers only: the row's seed, the row's offset (which of its tokens is drawn) and
the token. Tiles and order of summation are the same for every batch. So a row draws the same token in any company, and
inside of a CUDA graph, where a generator with a state could not be used.

    column   0 .. 1023    1024 .. 2047    2048 .. 3071    3072 .. 4095    4096 ..
    noise    word 0       word 1          word 2          word 3          word 0       of Philox's four, at the counter
             0 .. 1023    0 .. 1023       0 .. 1023       0 .. 1023       1024 ..      that a column shares with three

A row of 151,936 logits in bfloat16 is 304 KB: a batch of 256 is 78 MB, 18 microseconds of an H200's bandwidth. Philox
is some 70 instructions for four columns, and what else a column takes some 25 (an estimate): these last longer than the
bytes. A program of 16 warps fills a multiprocessor's registers, so an H200 runs 132 rows at once.

vLLM: v1/sample/ops/topk_topp_triton.py (the filters), v1/worker/gpu/sample/gumbel.py (the noise)
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from folovllm.sample.draw import NOT_FINITE
from folovllm.sample.filters import Filters
from folovllm.sample.kernels.threshold import count_and_mass, extremes, find_threshold, key_of, load_row, value_of

# Columns a step: 4 for each thread of 16 warps. Counts and masses for 4 pivots are then 32 registers a thread.
BLOCK = 2048
NUM_WARPS = 16
# Columns that take the same word of Philox's four. It decides which noise a token has, so it is the same for every row.
STRIPE = 1024
# Below this temperature the largest logit is found first: x / T itself would be so large that its last bit is no longer
# small beside the noise.
MIN_DIRECT = 0.1
# Bits of the float32 that a narrower dtype leaves empty.
_SHIFTS = {torch.float32: 0, torch.bfloat16: 16, torch.float16: 13}


@triton.jit
def exponential(bits):
    """Exp(1) noise from 32 random bits, never 0.

    -log(1 - u) for a uniform u of 31 bits. The winner of a race among 150,000 has a noise near 1/150,000, where 1 - u
    in float32 has steps of 6e-8, 1% of that. So small noises come from the series, in which u keeps all its bits.
    """
    u = (bits >> 1).to(tl.float32) * 4.656612873077393e-10 + 2.3283064365386963e-10  # 2^-31 and half of it
    series = u * (1.0 + u * (0.5 + u * (0.33333334 + u * (0.25 + u * (0.2 + u * 0.16666667)))))
    # 31 bits may round up to u = 1.
    return tl.where(u < 0.0625, series, -tl.log(tl.maximum(1.0 - u, 5.9604645e-08)))


@triton.jit
def random_words(seed, offset, counter):
    """Philox's four words under the key `seed` at the counter (counter, offset). A counter-based generator has no
    state: the numbers are the same wherever and whenever they are computed."""
    low, high = offset.to(tl.uint32), (offset >> 32).to(tl.uint32)
    return tl.philox(seed, counter, low, high, 0)


@triton.jit
def noise(seed, offset, column, STRIPE: tl.constexpr):
    """The Exp(1) noise of any column. The kernel computes four columns' at once; this is what they are, one by one."""
    counter = column // (4 * STRIPE) * STRIPE + column % STRIPE
    w0, w1, w2, w3 = random_words(seed, offset, counter)
    word = column // STRIPE % 4
    return exponential(tl.where(word < 2, tl.where(word < 1, w0, w1), tl.where(word < 3, w2, w3)))


# A row's settings and place lie anywhere in what a step uploads. Two variants for them would be compiled while serving.
@triton.jit(
    do_not_specialize_on_alignment=[
        "temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr", "seed_ptr", "offset_ptr", "token_ptr",
    ],
)  # fmt: skip
def _sample_kernel(
    logits_ptr,
    row_stride,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seed_ptr,
    seed_stride,
    offset_ptr,
    token_ptr,
    kept_ptr,  # [b, vocab] where REPORT, else not looked at
    vocab_size,
    NOT_FINITE: tl.constexpr,
    MIN_DIRECT: tl.constexpr,
    REPORT: tl.constexpr,
    SHIFT: tl.constexpr,
    STRIPE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * row_stride
    temperature = tl.load(temperature_ptr + row)
    is_greedy = temperature == 0.0
    beta = tl.where(is_greedy, 1.0, 1.0 / tl.where(is_greedy, 1.0, temperature)).to(tl.float32)
    top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row).to(tl.float32)
    is_filtered = (top_k < vocab_size) | (top_p < 1.0) | (min_p > 0.0)
    is_filtered = is_filtered & (temperature > 0.0)

    # Kept are the keys above `lo`, and of those equal to it the first `ties` of the row.
    top = tl.zeros([], tl.float32)
    lo = tl.full([], -(2**31), tl.int64)
    ties = vocab_size.to(tl.int64)
    if is_filtered | ((temperature < MIN_DIRECT) & (temperature > 0.0)):
        top, floor, possible = extremes(row_ptr, vocab_size, BLOCK)
        if is_filtered:
            lo, ties = _thresholds(row_ptr, vocab_size, top, floor, possible, top_k, top_p, beta, SHIFT, BLOCK)

    seed, offset = tl.load(seed_ptr + row * seed_stride), tl.load(offset_ptr + row).to(tl.int64)
    best = tl.full([STRIPE], float("-inf"), tl.float32)
    winner = tl.zeros([STRIPE], tl.int32)
    overflown = tl.zeros([STRIPE], tl.int32)
    seen = tl.zeros([], tl.int32)  # ties of the tiles before
    some_ties_go = ties < vocab_size
    counter = tl.arange(0, STRIPE)
    start = 0
    while start < vocab_size:
        w0, w1, w2, w3 = random_words(seed, offset, counter)
        for word in tl.static_range(4):
            column, x, exists = load_row(row_ptr, start + word * STRIPE, vocab_size, STRIPE)
            overflown |= tl.where(x < float("inf"), 0, 1)  # NaN is less than nothing
            kept = exists
            if is_filtered:
                key = key_of(x, SHIFT)
                kept &= (key >= lo) & (tl.exp((x - top) * beta) >= min_p)
                if some_ties_go:
                    tie = ((key == lo) & exists).to(tl.int32)
                    num_ties = tl.sum(tie, axis=0)
                    if num_ties > 0:
                        rank = seen + tl.cumsum(tie, axis=0)  # from 1
                        kept &= (key > lo) | (rank <= ties)
                        seen += num_ties
            if REPORT:
                tl.store(kept_ptr + row * vocab_size + column, kept.to(tl.int8), mask=exists)
            if word == 0:
                bits = w0
            elif word == 1:
                bits = w1
            elif word == 2:
                bits = w2
            else:
                bits = w3
            score = (x - top) * beta
            if temperature > 0.0:
                score -= tl.log(exponential(bits))
            score = tl.where(kept, score, float("-inf"))
            winner = tl.where(score > best, column, winner)
            best = tl.maximum(best, score)
        counter += STRIPE
        start += 4 * STRIPE
    first = tl.max(best, axis=0)
    token = tl.min(tl.where(best == first, winner, vocab_size), axis=0)  # the first of equal ones, as argmax says
    can_draw = (tl.max(overflown, axis=0) == 0) & (first > float("-inf"))
    tl.store(token_ptr + row, tl.where(can_draw, tl.minimum(token, vocab_size - 1), NOT_FINITE).to(tl.int64))


@triton.jit
def _thresholds(row_ptr, vocab_size, top, floor, possible, top_k, top_p, beta,
                SHIFT: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """(lo, ties): top-k's and top-p's threshold as a key, and how many of the tokens that have it are kept."""
    top_k = tl.minimum(top_k, possible).to(tl.int32)
    lo = key_of(floor, SHIFT).to(tl.int64)
    hi = key_of(top, SHIFT).to(tl.int64) + 1
    ties = vocab_size.to(tl.int64)
    if top_k < possible:
        lo, exact, above, _ = find_threshold(
            row_ptr, vocab_size, top, beta, lo, hi, possible, top_k, False, SHIFT, BLOCK
        )
        ties = tl.where(exact, (top_k - above).to(tl.int64), ties)
    if top_p < 1.0:
        # Top-p's line is a share of the mass that top-k left: all tokens above its threshold and `ties` of those at it.
        pivots = lo + (tl.arange(0, 4) > 0)  # lo, and the rest lo + 1
        counts, masses = count_and_mass(row_ptr, vocab_size, top, beta, pivots.to(tl.int32), SHIFT, BLOCK)
        above, mass_above = tl.min(counts, axis=0), tl.min(masses, axis=0)
        equal = tl.max(counts, axis=0) - above
        tied = tl.minimum(ties, equal.to(tl.int64))
        line = top_p * (mass_above + tied * _weight(lo, top, beta, SHIFT))
        at_least = (above + tied).to(tl.int32)
        crossing, exact, _, mass_above = find_threshold(
            row_ptr, vocab_size, top, beta, lo, hi, at_least, line, True, SHIFT, BLOCK
        )
        # A token is in while the mass before it has not reached the line.
        weight = _weight(crossing, top, beta, SHIFT)
        needed = ((line - mass_above) / weight).to(tl.int64)
        needed += (mass_above + needed * weight < line).to(tl.int64)
        needed = tl.where(exact, tl.maximum(needed, 1), vocab_size.to(tl.int64))
        ties = tl.where(crossing == lo, tl.minimum(ties, needed), needed)
        lo = crossing
    return lo, ties


@triton.jit
def _weight(key, top, beta, SHIFT: tl.constexpr):
    """The weight of the tokens with this key, in float64, but not 0: it divides."""
    return tl.maximum(tl.exp((value_of(key, SHIFT) - top) * beta), 1e-38).to(tl.float64)


def sample(
    logits: Tensor,
    filters: Filters,
    seeds: Tensor,
    offsets: Tensor,
    *,
    out: Tensor | None = None,
    kept: Tensor | None = None,
) -> Tensor:
    """One token id for each row of `logits` [b, vocab], on the device: [b] int64, and no host sync. NOT_FINITE stands
    for a token where the logits hold NaN or +inf, or nothing but -inf.

    filters: temperature 0 is the argmax, the first of the largest.
    seeds, offsets: integers [b] each. Rows with the same pair have the same noise. `seeds` may be expanded.
    out: [b] int64 to write to; made if None.
    kept: [b, vocab] int8, contiguous, that is written to as well: 1 for each token that may be drawn, else 0.
    """
    num_rows, vocab_size = logits.shape
    if logits.dtype not in _SHIFTS:
        raise ValueError(f"logits must be one of {[str(dtype) for dtype in _SHIFTS]}, got {logits.dtype}")
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device) if out is None else out
    if num_rows:
        _sample_kernel[(num_rows,)](
            logits,
            logits.stride(0),
            filters.temperature,
            filters.top_k,
            filters.top_p,
            filters.min_p,
            seeds,
            seeds.stride(0),
            offsets,
            tokens,
            tokens if kept is None else kept,
            vocab_size,
            NOT_FINITE=NOT_FINITE,
            MIN_DIRECT=MIN_DIRECT,
            REPORT=kept is not None,
            SHIFT=_SHIFTS[logits.dtype],
            STRIPE=STRIPE,
            BLOCK=min(BLOCK, max(128, triton.next_power_of_2(vocab_size))),
            num_warps=NUM_WARPS,
        )
    return tokens
