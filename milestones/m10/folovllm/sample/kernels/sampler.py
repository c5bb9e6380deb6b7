"""Sampling a row in one program: temperature, top-k, top-p, min-p, and a draw by two races; or the argmax.

    where filters are on   1 pass         largest and smallest logit
                           passes         top-k's threshold, counting                        where top-k is on
                           1 pass         mass of what top-k left (of everything without it) ┐
                           passes         top-p's threshold, summing                         ┘ where top-p is on
    always                 last pass      the sum of each stripe's weights; can the row be drawn from?
                           two races      among the stripes, then inside of the winning one

The race in logarithms: of tokens that finish at Exp(1) / exp(x / T) the first is the one with the largest
x / T - log(Exp(1)), the Gumbel-max trick. Noise for each token would be most of the work. But a group of tokens can run
as one, with the sum of their weights, and when it has won its members race among themselves: token i of group g wins
with probability (W_g / W) * (w_i / W_g) = w_i / W, the same as before. A group is a stripe, the columns that one lane
of the program reads:

    column        0       1      ..    2047        2048      2049     ..     one row: LANES stripes
    lane          0       1      ..    2047        0         1        ..     each with its maximum and its sum of exp2
                  └───────────────────────────────┘ lane 0's stripe          one noise a stripe, then one a token of it

So a logit costs a maximum, an exponential and a sum; noise is computed for 2,048 stripes and 75 tokens instead of for
151,936 tokens. Nothing is exchanged between threads before the end of the row, and a thread asks for 8 times 16 bytes
before it uses any. Nothing but the token leaves the program: no sorted copy, no probabilities, no mask.

The noise depends on three numbers only: the row's seed, the row's offset (which of its tokens is drawn), and the stripe
or the token. Tiles and order of summation are the same for every batch. So a row draws the same token in any batch,
and inside of a CUDA graph, where a generator with a state could not be used.

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
from folovllm.sample.kernels.threshold import (
    column_of_tie,
    count_and_mass,
    extremes,
    find_threshold,
    key_of,
    load_row,
    value_of,
)
from folovllm.utils.dependent_launch import dependent_launch, wait_for_kernel_before

NUM_WARPS = 8
# Stripes of a row, 8 for each thread: 16 bytes of bfloat16. It decides which noise a token has, so it is the same for
# every row.
LANES = 2048
DEEP = 8  # tokens of a stripe that are read at once
BLOCK = 1024  # columns that the search for a threshold reads at once: counts and masses are then 32 registers a thread
# Bits of the float32 that a narrower dtype leaves empty.
_SHIFTS = {torch.float32: 0, torch.bfloat16: 16, torch.float16: 13}


@triton.jit
def exponential(bits):
    """Exp(1) noise from 32 random bits, never 0.

    -log(1 - u) for a uniform u of 31 bits. The winner of a race among 2,048 has a noise near 1/2,048, or far below,
    where 1 - u in float32 has steps of 6e-8. So small noises come from the series, in which u keeps all its bits.
    """
    u = (bits >> 1).to(tl.float32) * 4.656612873077393e-10 + 2.3283064365386963e-10  # 2^-31 and half of it
    series = u * (1.0 + u * (0.5 + u * (0.33333334 + u * (0.25 + u * (0.2 + u * 0.16666667)))))
    # 31 bits may round up to u = 1.
    return tl.where(u < 0.0625, series, -tl.log(tl.maximum(1.0 - u, 5.9604645e-08)))


@triton.jit
def noise(seed, offset, number, race):
    """Exp(1) for each `number`, a stripe's in race 0, a token's in race 1: of the first of Philox's four words, under
    the key `seed` at the counter (number, offset, race). A counter-based generator has no state: the numbers are the
    same wherever and whenever they are computed."""
    low, high = offset.to(tl.uint32), (offset >> 32).to(tl.uint32)
    word, _, _, _ = tl.philox(seed, number, low, high, race)
    return exponential(word)


@triton.jit
def _is_dropped(x, column, cut, last):
    """Kept is what is above `cut`, and of what equals it the columns up to `last`. NaN is kept: it must be seen."""
    above = value_of(key_of(cut, 0) + 1, 0)  # the next number
    return x < tl.where(column > last, above, cut)


@triton.jit
def _load_tile(row_ptr, column, vocab_size):
    """The logits of columns in any shape; -inf for a column that does not exist."""
    return tl.load(row_ptr + column, mask=column < vocab_size, other=float("-inf"))


@triton.jit
def _sum_stripes(row_ptr, vocab_size, beta, cut, last, FILTERED: tl.constexpr, LANES: tl.constexpr, DEEP: tl.constexpr):
    """For each lane [LANES]: the largest logit of its stripe, the sum of exp2((x - largest) * beta), and where the tile
    begins in which the largest was first found. NaN and +inf make the sum NaN."""
    places = tl.arange(0, DEEP)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    largest = tl.full([LANES], -1e30, tl.float32)  # finite, as -inf is subtracted from it, and far below a logit
    total = tl.zeros([LANES], tl.float32)
    tile = tl.zeros([LANES], tl.int32)
    ahead = _load_tile(row_ptr, places, vocab_size)
    start = 0
    while start < vocab_size:
        x = ahead.to(tl.float32)
        ahead = _load_tile(row_ptr, start + DEEP * LANES + places, vocab_size)  # comes while this one is computed
        if FILTERED:
            x = tl.where(_is_dropped(x, start + places, cut, last), float("-inf"), x)
        new = tl.maximum(largest, tl.max(x, axis=0))
        weights = tl.exp2((x - new[None, :]) * beta)
        total = total * tl.exp2((largest - new) * beta) + tl.sum(weights, axis=0)
        tile = tl.where(new > largest, start, tile)
        largest = new
        start += DEEP * LANES
    return largest, total, tile


# A row's settings and place lie anywhere in what a step uploads. Two variants for them would be compiled while serving.
@triton.jit(
    do_not_specialize_on_alignment=[
        "temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr", "seed_ptr", "offset_ptr", "token_ptr",
    ],
)  # fmt: skip
def _sample_kernel(
    logits_ptr, row_stride, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seed_ptr, seed_stride, offset_ptr,
    token_ptr,
    kept_ptr,  # [b, vocab] where REPORT, else not looked at
    vocab_size,
    NOT_FINITE: tl.constexpr, REPORT: tl.constexpr, SHIFT: tl.constexpr, LANES: tl.constexpr, DEEP: tl.constexpr,
    TILES: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_kernel_before(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * row_stride
    temperature = tl.load(temperature_ptr + row)
    is_greedy = temperature == 0.0
    beta = (1.4426950408889634 / tl.where(is_greedy, 1.0, temperature)).to(tl.float32)  # exp(x / T) = exp2(x * beta)
    top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row).to(tl.float32)
    is_filtered = ((top_k < vocab_size) | (top_p < 1.0) | (min_p > 0.0)) & (temperature > 0.0)

    cut = tl.full([], float("-inf"), tl.float32)
    last = vocab_size
    if is_filtered:
        cut, last = _find_cut(row_ptr, vocab_size, top_k, top_p, min_p, beta, SHIFT, BLOCK)
        largest, total, tile = _sum_stripes(row_ptr, vocab_size, beta, cut, last, True, LANES, DEEP)
    else:
        largest, total, tile = _sum_stripes(row_ptr, vocab_size, beta, cut, last, False, LANES, DEEP)
    if REPORT:
        start = 0
        while start < vocab_size:
            column, x, exists = load_row(row_ptr, start, vocab_size, BLOCK)
            kept = 1 - _is_dropped(x, column, cut, last).to(tl.int8)
            tl.store(kept_ptr + row * vocab_size + column, kept, mask=exists)
            start += BLOCK

    top = tl.max(largest, axis=0)
    lanes = tl.arange(0, LANES)
    if is_greedy:
        # Equal logits may be the largest of many stripes: the first of them is in the first tile that has one.
        start = tl.min(tl.where(largest == top, tile, vocab_size), axis=0)
        column = start + tl.arange(0, DEEP)[:, None] * LANES + lanes[None, :]
        is_top = _load_tile(row_ptr, column, vocab_size).to(tl.float32) == top
        token = tl.min(tl.min(tl.where(is_top, column, vocab_size), axis=0), axis=0)
    else:
        seed, offset = tl.load(seed_ptr + row * seed_stride), tl.load(offset_ptr + row).to(tl.int64)
        score = (largest - top) * beta + tl.log2(tl.maximum(total, 1e-30)) - tl.log2(noise(seed, offset, lanes, 0))
        winner = tl.min(tl.where(score == tl.max(score, axis=0), lanes, LANES - 1), axis=0)
        stripe = winner + tl.arange(0, TILES) * LANES
        x = _load_tile(row_ptr, stripe, vocab_size).to(tl.float32)
        x = tl.where(_is_dropped(x, stripe, cut, last), float("-inf"), x)
        place = (x - top) * beta - tl.log2(noise(seed, offset, stripe, 1))
        token = tl.min(tl.where(place == tl.max(place, axis=0), stripe, vocab_size), axis=0)
    can_draw = tl.sum(total, axis=0) > 0.0  # not where it is NaN
    tl.store(token_ptr + row, tl.where(can_draw, tl.minimum(token, vocab_size - 1), NOT_FINITE).to(tl.int64))


@triton.jit
def _find_cut(row_ptr, vocab_size, top_k, top_p, min_p, beta, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """(cut, last), as _is_dropped() takes them."""
    top, floor, possible = extremes(row_ptr, vocab_size, BLOCK)
    key, ties = _thresholds(row_ptr, vocab_size, top, floor, possible, top_k, top_p, beta, SHIFT, BLOCK)
    cut, last = value_of(key, SHIFT), vocab_size
    if min_p > 0.0:
        bound = top + tl.log2(min_p) / beta
        ties = tl.where(bound > cut, vocab_size, ties)
        cut = tl.maximum(cut, bound)
    if ties < vocab_size:
        last = column_of_tie(row_ptr, vocab_size, cut, ties, BLOCK)
    return cut, last


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
    return tl.maximum(tl.exp2((value_of(key, SHIFT) - top) * beta), 1e-38).to(tl.float64)


def sample(
    logits: Tensor, filters: Filters, seeds: Tensor, offsets: Tensor, *, out: Tensor | None = None,
    kept: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """One token id for each row of `logits` [b, vocab], on the device: [b] int64, and no host sync. It is NOT_FINITE
    where the logits hold NaN or +inf, or nothing but -inf.

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
    lanes = min(LANES, triton.next_power_of_2(vocab_size))
    if num_rows:
        _sample_kernel[(num_rows,)](
            logits, logits.stride(0), filters.temperature, filters.top_k, filters.top_p, filters.min_p,
            seeds, seeds.stride(0), offsets, tokens, tokens if kept is None else kept, vocab_size,
            NOT_FINITE=NOT_FINITE, REPORT=kept is not None, SHIFT=_SHIFTS[logits.dtype], LANES=lanes, DEEP=DEEP,
            TILES=triton.next_power_of_2(triton.cdiv(vocab_size, lanes)),
            BLOCK=min(BLOCK, max(128, triton.next_power_of_2(vocab_size))),
            **dependent_launch(logits.device), num_warps=NUM_WARPS,
        )  # fmt: skip
    return tokens
