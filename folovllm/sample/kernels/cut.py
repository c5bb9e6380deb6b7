"""Where rows are cut by top-k, top-p and min-p: by several programs a row, which keep a few hundred tokens to look at.

A threshold is found by passes over a row (threshold.py), and one program a row takes 20 us for a pass. But what stays
is nearly always among the few hundred likeliest, and those are found in two passes:

    launch 1    8 programs a row        of each lane: its largest logit, the sum of its weights, where the largest is
    launch 2    several programs a row  the 512th largest of the 2,048 lanes' logits is a bound: at least 512 tokens
                                        reach it, some 700 of them. Each program writes those of its columns to a list
                the last one of them    sorts the list: what stays is a prefix of it, as filters.keep_prefix() has it
    launch 3    sampler.py              draws from what is kept

The lanes are the draw's stripes, each program's a part of them. So the draw passes over filtered rows alone.

Which program is last does not matter, nor in which order the list was written: no two entries are equal, for a column
is a part of each. The last one searches the row itself, in passes, where the list cannot answer: more than MOST tokens
reach the bound (equal ones, say), top-k wants more than are there, or they have not the mass that top-p asks for.

vLLM: v1/sample/ops/topk_topp_triton.py, which gathers likely tokens first, too
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from folovllm.sample.filters import Filters
from folovllm.sample.kernels.threshold import (
    column_of_tie,
    count_and_mass,
    extremes,
    find_threshold,
    key_of,
    value_of,
)
from folovllm.utils.dependent_launch import dependent_launch, wait_for_kernel_before

PART_LANES = 256  # of one warp in the first launch, 8 for each thread
RANK = 512  # of the lanes' largest logits: the bound
MOST = 1024  # tokens that are sorted
TILE = 2048  # columns that are compared with the bound at once
BLOCK = 1024  # columns that the search for a threshold reads at once: counts and masses are then 32 registers a thread
CUT_WARPS = 8
MANY_ROWS = 16  # have 4 programs each in the second launch, fewer have 16
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
def sum_stripes(
    row_ptr, vocab_size, beta, cut, last, first, FILTERED: tl.constexpr, LANES: tl.constexpr, ALL: tl.constexpr,
    DEEP: tl.constexpr,
):  # fmt: skip
    """For each lane [LANES]: the largest logit of its stripe, the sum of exp2((x - largest) * beta), and where the tile
    begins in which the largest was first found. NaN and +inf make the sum NaN. first: of the lanes, of ALL."""
    places = tl.arange(0, DEEP)[:, None] * ALL + first + tl.arange(0, LANES)[None, :]
    largest = tl.full([LANES], -1e30, tl.float32)  # finite, as -inf is subtracted from it, and far below a logit
    total = tl.zeros([LANES], tl.float32)
    tile = tl.zeros([LANES], tl.int32)
    ahead = load_tile(row_ptr, places, vocab_size)
    start = 0
    while start < vocab_size:
        x = ahead.to(tl.float32)
        ahead = load_tile(row_ptr, start + DEEP * ALL + places, vocab_size)  # comes while this one is computed
        if FILTERED:
            x = tl.where(is_dropped(x, start + places, cut, last), float("-inf"), x)
        new = tl.maximum(largest, tl.max(x, axis=0))
        weights = tl.exp2((x - new[None, :]) * beta)
        total = total * tl.exp2((largest - new) * beta) + tl.sum(weights, axis=0)
        tile = tl.where(new > largest, start, tile)
        largest = new
        start += DEEP * ALL
    return largest, total, tile


@triton.jit
def load_settings(row, vocab_size, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr):
    """(is the row filtered, beta, top_k, top_p, min_p); exp(x / T) = exp2(x * beta)."""
    temperature = tl.load(temperature_ptr + row)
    beta = (1.4426950408889634 / tl.where(temperature == 0.0, 1.0, temperature)).to(tl.float32)
    top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row).to(tl.float32)
    return ((top_k < vocab_size) | (top_p < 1.0) | (min_p > 0.0)) & (temperature > 0.0), beta, top_k, top_p, min_p


@triton.jit(do_not_specialize_on_alignment=["temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr"])
def _sample_lanes_kernel(
    logits_ptr, row_stride, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, lanes_ptr, counters_ptr, vocab_size,
    PARTS: tl.constexpr, LANES: tl.constexpr, DEEP: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """lanes [rows, 3, PARTS * LANES]: what sum_stripes() returns of unfiltered rows. counters [rows, 2]: zero, for the
    next one."""
    wait_for_kernel_before(DEPENDENT)
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    _, beta, _, _, _ = load_settings(row, vocab_size, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr)
    if part == 0:
        tl.store(counters_ptr + 2 * row + tl.arange(0, 2), tl.zeros([2], tl.int32))
    largest, total, tile = sum_stripes(
        logits_ptr + row * row_stride, vocab_size, beta, 0.0, 0, part * LANES, False, LANES, PARTS * LANES, DEEP
    )
    places = lanes_ptr + row * (3 * PARTS * LANES) + part * LANES + tl.arange(0, LANES)
    tl.store(places, largest)
    tl.store(places + PARTS * LANES, total)
    tl.store(places + 2 * PARTS * LANES, tile.to(tl.float32, bitcast=True))


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


@triton.jit(do_not_specialize_on_alignment=["temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr"])
def _sample_cut_kernel(
    logits_ptr, row_stride, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, lanes_ptr, counters_ptr, list_ptr,
    cut_ptr, last_ptr, vocab_size,
    LANES: tl.constexpr, RANK: tl.constexpr, MOST: tl.constexpr, TILE: tl.constexpr, SHIFT: tl.constexpr,
    BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """cut, last [rows], as is_dropped() takes them, of rows that are filtered. list [rows, MOST] int32."""
    wait_for_kernel_before(DEPENDENT)
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    is_filtered, beta, top_k, top_p, min_p = load_settings(
        row, vocab_size, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr
    )
    if not is_filtered:
        return
    lanes = lanes_ptr + row * (3 * LANES) + tl.arange(0, LANES)
    largest, total = tl.load(lanes), tl.load(lanes + LANES)
    top = tl.max(largest, axis=0)
    lowest = tl.full([], float("-inf"), tl.float32)
    if min_p > 0.0:
        lowest = top + tl.log2(min_p) / beta
    if (top_k >= vocab_size) & (top_p >= 1.0):  # min-p alone
        if part == 0:
            tl.store(cut_ptr + row, lowest)
            tl.store(last_ptr + row, vocab_size)
        return
    row_ptr, list_ptr, counters = logits_ptr + row * row_stride, list_ptr + row * MOST, counters_ptr + 2 * row
    bound = _bound_of(largest, RANK)
    _list_tokens(row_ptr, vocab_size, bound, counters, list_ptr, MOST, TILE)
    # Release: every thread has written its part of the list before the barrier, and the one that counts comes behind
    # it, so whoever sees the count sees the list. Acquire: the last one to count sees all of it.
    tl.debug_barrier()
    if tl.atomic_add(counters + 1, 1, sem="acq_rel") < tl.num_programs(0) - 1:
        return
    count = tl.load(counters)
    mass = tl.sum((total * tl.exp2((largest - top) * beta)).to(tl.float64), axis=0)
    cut, last, is_known = _cut_list(
        row_ptr, list_ptr, count, bound == LOWEST, top, mass, vocab_size, top_k, top_p, lowest, beta, MOST
    )
    if not is_known:
        cut, last = find_cut(row_ptr, vocab_size, top_k, top_p, lowest, beta, SHIFT, BLOCK)
    tl.store(cut_ptr + row, cut)
    tl.store(last_ptr + row, last)


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
def _cut_list(row_ptr, list_ptr, count, is_all, top, mass, vocab_size, top_k, top_p, lowest, beta, MOST: tl.constexpr):
    """(cut, last, whether they are right). count: of the list's entries. is_all: the others are -inf. mass: the row's
    weights. lowest: no smaller logit stays."""
    rank = tl.arange(0, MOST)
    column = tl.load(list_ptr + rank, mask=rank < count, other=0)
    key = key_of(tl.load(row_ptr + column).to(tl.float32), 0).to(tl.int64)
    entries = tl.where(rank < count, (key << 32) + (0x7FFFFFFF - column), -0x8000000000000000)
    entries = tl.sort(entries, descending=True)  # of equal logits the first column is the largest entry
    x = value_of((entries >> 32).to(tl.int32), 0)
    weight = tl.where(rank < count, tl.exp2((x - top) * beta), 0.0).to(tl.float64)
    cuts_k = top_k < vocab_size
    listed = tl.sum(tl.where(rank < top_k, weight, 0.0), axis=0)
    is_known = (count <= MOST) & (is_all | tl.where(cuts_k, top_k <= count, listed >= top_p * mass))
    line = top_p * tl.where(cuts_k | is_all, listed, mass)
    # A token is in while the mass before it has not reached the line.
    stays = (rank < tl.minimum(top_k, count)) & (tl.cumsum(weight, axis=0) - weight < line) & (x >= lowest)
    lowest_kept = rank == tl.maximum(tl.sum(stays.to(tl.int32), axis=0), 1) - 1
    entry = tl.sum(tl.where(lowest_kept, entries, 0), axis=0)
    return value_of((entry >> 32).to(tl.int32), 0), 0x7FFFFFFF - (entry & 0xFFFFFFFF).to(tl.int32), is_known


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


def find_cuts(logits: Tensor, filters: Filters, shift: int, num_lanes: int, deep: int) -> tuple[Tensor, Tensor, Tensor]:
    """(cut [b] float32, last [b] int32) of the rows of logits [b, vocab] that are filtered, as is_dropped() takes them;
    of the others anything. And the lanes of all rows, [b, 3, num_lanes].

    shift: as key_of() has it.  deep: tokens of a lane that are read at once."""
    (num_rows, vocab_size), device = logits.shape, logits.device
    part_lanes = min(PART_LANES, num_lanes)
    lanes = torch.empty(num_rows, 3, num_lanes, dtype=torch.float32, device=device)
    counters = torch.empty(num_rows, 2, dtype=torch.int32, device=device)
    most = min(MOST, triton.next_power_of_2(vocab_size))
    columns = torch.empty(num_rows, most, dtype=torch.int32, device=device)
    cut, last = lanes.new_empty(num_rows), counters.new_empty(num_rows)
    settings = filters.temperature, filters.top_k, filters.top_p, filters.min_p
    _sample_lanes_kernel[(num_lanes // part_lanes, num_rows)](
        logits, logits.stride(0), *settings, lanes, counters, vocab_size,
        PARTS=num_lanes // part_lanes, LANES=part_lanes, DEEP=deep, **dependent_launch(device), num_warps=1,
    )  # fmt: skip
    programs = min(4 if num_rows > MANY_ROWS else 16, triton.cdiv(vocab_size, TILE))
    _sample_cut_kernel[(programs, num_rows)](
        logits, logits.stride(0), *settings, lanes, counters, columns, cut, last, vocab_size,
        LANES=num_lanes, RANK=RANK, MOST=most, TILE=TILE, SHIFT=shift,
        BLOCK=min(BLOCK, max(128, triton.next_power_of_2(vocab_size))), **dependent_launch(device),
        num_warps=CUT_WARPS,
    )  # fmt: skip
    return cut, last, lanes
