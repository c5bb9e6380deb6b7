"""Where a row is cut by top-k, top-p and min-p: its programs keep a few hundred tokens to look at.

A threshold is found by passes over a row (threshold.py), and one program a row takes 20 us for a pass. But what stays
is nearly always among the few hundred likeliest, and those are found in a second pass of several programs:

    each program      the 512th largest of the 2,048 stripes' logits is a bound: at least 512 tokens reach it, some 700
                      of them. It writes those of its columns to a list
    the last of them  sorts the list: what stays is a prefix of it, as filters.keep_prefix() has it

Which program is last does not matter, nor in which order the list was written: no two entries are equal, for a column
is a part of each. The last one searches the row itself, in passes, where the list cannot answer: more than MOST tokens
reach the bound (equal ones, say), top-k wants more than are there, or they have not the mass that top-p asks for.

vLLM: v1/sample/ops/topk_topp_triton.py, which gathers likely tokens first, too
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from folovllm.sample.kernels.threshold import (
    column_of_tie,
    count_and_mass,
    extremes,
    find_threshold,
    key_of,
    value_of,
)

LOWEST = tl.constexpr(-3.4028234663852886e38)  # of float32


@triton.jit
def is_dropped(x, column, cut, last):
    """Kept is what is above `cut`, and of what equals it the columns up to `last`. NaN is kept: it must be seen."""
    above = value_of(key_of(cut, 0) + 1, 0)  # the next number
    return x < tl.where(column > last, above, cut)


@triton.jit
def load_tile(row_ptr, column, vocab_size):
    """The logits of columns in any shape; -inf for a column that does not exist."""
    return tl.load(row_ptr + column, mask=column < vocab_size, other=float("-inf"))


@triton.jit
def cut_row(
    row_ptr, lanes_ptr, counters_ptr, list_ptr, vocab_size, beta, top_k, top_p, min_p,
    LANES: tl.constexpr, RANK: tl.constexpr, MOST: tl.constexpr, FEW: tl.constexpr, TILE: tl.constexpr,
    SHIFT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(whether this program goes on with the row, cut, last, few): cut and last as is_dropped() takes them, and where
    at most FEW tokens stay, `few` of them begin the list [MOST] int32; else it is 0.

    lanes: the largest logit and the sum of each stripe, as sum_stripes() returns them. counters [2]: zero."""
    lanes = lanes_ptr + tl.arange(0, LANES)
    largest, total = tl.load(lanes), tl.load(lanes + LANES)
    top = tl.max(largest, axis=0)
    lowest = tl.full([], float("-inf"), tl.float32)
    if min_p > 0.0:
        lowest = top + tl.log2(min_p) / beta
    goes_on, cut, last, few = tl.program_id(0) == 0, lowest, vocab_size, 0
    if (top_k < vocab_size) | (top_p < 1.0):  # else min-p alone
        bound = _bound_of(largest, RANK)
        _list_tokens(row_ptr, vocab_size, bound, counters_ptr, list_ptr, MOST, TILE)
        # Release: every thread has written its part of the list before the barrier, and the one that counts comes
        # behind it, so whoever sees the count sees the list. Acquire: the last one to count sees all of it.
        tl.debug_barrier()
        goes_on = tl.atomic_add(counters_ptr + 1, 1, sem="acq_rel") == tl.num_programs(0) - 1
        if goes_on:
            count = tl.load(counters_ptr)
            mass = tl.sum((total * tl.exp2((largest - top) * beta)).to(tl.float64), axis=0)
            kept, is_known = _sort_list(
                row_ptr, list_ptr, count, bound == LOWEST, top, mass, vocab_size, top_k, top_p, lowest, beta, MOST
            )
            if is_known:
                last = tl.load(list_ptr + kept - 1, mask=kept > 0, other=vocab_size)
                cut = tl.load(row_ptr + last, mask=kept > 0, other=float("-inf")).to(tl.float32)
                few = tl.where((kept <= FEW) & (mass > 0.0), kept, 0)  # the mass is NaN where a logit is NaN or +inf
            else:
                cut, last = find_cut(row_ptr, vocab_size, top_k, top_p, lowest, beta, SHIFT, BLOCK)
    return goes_on, cut, last, few


@triton.jit
def _bound_of(largest, RANK: tl.constexpr):
    """At least RANK of `largest` reach it, and not many more: of their keys the upper 16 bits, bit by bit. LOWEST where
    fewer lanes have a logit."""
    keys = key_of(largest, 0) >> 16
    least = tl.full([], -32768, tl.int32)
    for bit in tl.static_range(15, -1, -1):
        higher = least + (1 << bit)
        least = tl.where(tl.sum((keys >= higher).to(tl.int32), axis=0) >= RANK, higher, least)
    bound = value_of(least << 16, 0)
    return tl.where(bound > -1e30, bound, LOWEST)


@triton.jit
def _list_tokens(row_ptr, vocab_size, bound, counter, list_ptr, MOST: tl.constexpr, TILE: tl.constexpr):
    """The columns of this program's tiles that reach `bound`. `counter` counts on where the list is full."""
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)
    step = TILE * tl.num_programs(0)
    ahead = load_tile(row_ptr, column, vocab_size)
    start = tl.program_id(0) * TILE
    while start < vocab_size:
        chosen = ahead.to(tl.float32) >= bound
        ahead = load_tile(row_ptr, column + step, vocab_size)
        place = tl.atomic_add(counter + column * 0, 1, mask=chosen, sem="relaxed")
        tl.store(list_ptr + place, column, mask=chosen & (place < MOST))
        column += step
        start += step


@triton.jit
def _sort_list(row_ptr, list_ptr, count, is_all, top, mass, vocab_size, top_k, top_p, lowest, beta, MOST: tl.constexpr):
    """(how many of the list's columns stay, whether that is right), and the list is sorted: the likeliest first. count:
    of its entries. is_all: the others are -inf. mass: the row's weights. lowest: no smaller logit stays."""
    rank = tl.arange(0, MOST)
    column = tl.load(list_ptr + rank, mask=rank < count, other=0)
    key = key_of(tl.load(row_ptr + column).to(tl.float32), 0).to(tl.int64)
    entries = tl.where(rank < count, (key << 32) + (0x7FFFFFFF - column), -0x8000000000000000)
    entries = tl.sort(entries, descending=True)  # of equal logits the first column is the largest entry
    tl.store(list_ptr + rank, 0x7FFFFFFF - (entries & 0xFFFFFFFF).to(tl.int32), mask=rank < count)
    tl.debug_barrier()
    x = value_of((entries >> 32).to(tl.int32), 0)
    weight = tl.where(rank < count, tl.exp2((x - top) * beta), 0.0).to(tl.float64)
    cuts_k = top_k < vocab_size
    listed = tl.sum(tl.where(rank < top_k, weight, 0.0), axis=0)
    is_known = (count <= MOST) & (is_all | tl.where(cuts_k, top_k <= count, listed >= top_p * mass))
    line = top_p * tl.where(cuts_k | is_all, listed, mass)
    # A token is in while the mass before it has not reached the line.
    stays = (rank < tl.minimum(top_k, count)) & (tl.cumsum(weight, axis=0) - weight < line) & (x >= lowest)
    return tl.minimum(tl.maximum(tl.sum(stays.to(tl.int32), axis=0), 1), count), is_known


@triton.jit
def find_cut(row_ptr, vocab_size, top_k, top_p, lowest, beta, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """(cut, last), as is_dropped() takes them, by passes over the row."""
    top, floor, possible = extremes(row_ptr, vocab_size, BLOCK)
    key, ties = _thresholds(row_ptr, vocab_size, top, floor, possible, top_k, top_p, beta, SHIFT, BLOCK)
    cut, last = value_of(key, SHIFT), vocab_size
    ties = tl.where(lowest > cut, vocab_size, ties)
    cut = tl.maximum(cut, lowest)
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
