"""Sampling a row in two launches: temperature, top-k, top-p, min-p, and a draw by two races; or the argmax.

    launch 1    8 programs a row             the sum of each stripe's weights
    launch 2    several, for top-k or top-p  what is kept (cut.py)
                one, where more than a few   the same sums again, of what is kept
                tokens are kept
                one                          two races: among the stripes, then inside of the winning one

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
before it uses any. No sorted copy of the row is written, no probabilities and no mask.

Where few tokens are kept, they are all that is read: each of them finds those that share its stripe.

The noise depends on three numbers only: the row's seed, the row's offset (which of its tokens is drawn), and the stripe
or the token. Tiles and order of summation are the same for every batch, and whether tokens are few depends on the row
alone. So a row draws the same token in any batch, and inside of a CUDA graph, where a generator with a state could not
be used.

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
from folovllm.sample.kernels.cut import cut_row, is_dropped, load_tile
from folovllm.sample.kernels.threshold import load_row
from folovllm.utils.dependent_launch import dependent_launch, wait_for_kernel_before
from folovllm.utils.gpus import gpu_of

NUM_WARPS = 8
# Stripes of a row, 8 for each thread: 16 bytes of bfloat16. It decides which noise a token has, so it is the same for
# every row.
LANES = 2048
DEEP = 8  # tokens of a stripe that are read at once
PART_LANES = 256  # of one warp in the first launch, 8 for each thread
MOST_REGISTERS = 128  # of a thread that reports nothing: two rows are drawn on a multiprocessor at a time
RANK = 512  # of the stripes' largest logits: the bound of a list
MOST = 1024  # tokens that are sorted
FEW = 64  # tokens that are drawn from without another pass over the row
TILE = 2048  # columns that are compared with the bound at once
BLOCK = 1024  # columns that the search for a threshold reads at once: counts and masses are then 32 registers a thread
MANY_ROWS = 16  # have 4 programs each in the second launch, fewer have 16
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
        if FILTERED:  # without a tile ahead, for which the second launch has no registers
            x = load_tile(row_ptr, start + places, vocab_size).to(tl.float32)
            x = tl.where(is_dropped(x, start + places, cut, last), float("-inf"), x)
        else:
            x = ahead.to(tl.float32)
            ahead = load_tile(row_ptr, start + DEEP * ALL + places, vocab_size)  # comes while this one is computed
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
def _winning_stripe(largest, total, lane, top, beta, seed, offset, LANES: tl.constexpr):
    """The first race. largest, total: of the stripes `lane`, which may be some of them, or one several times."""
    score = (largest - top) * beta + tl.log2(tl.maximum(total, 1e-30)) - tl.log2(noise(seed, offset, lane, 0))
    return tl.min(tl.where(score == tl.max(score, axis=0), lane, LANES - 1), axis=0)


@triton.jit
def _winning_token(x, column, top, beta, seed, offset, vocab_size):
    """The second race: among these columns, whose logit is -inf where they are not in it."""
    place = (x - top) * beta - tl.log2(noise(seed, offset, column, 1))
    return tl.min(tl.where(place == tl.max(place, axis=0), column, vocab_size), axis=0)


@triton.jit
def _draw_of_few(row_ptr, list_ptr, few, beta, seed, offset, vocab_size, FEW: tl.constexpr, LANES: tl.constexpr):
    """The token drawn where only the first `few` columns of a list are kept: the one that races over the whole row
    draw, as the sums are the same, but for rounding where three columns or more share a stripe."""
    rank = tl.arange(0, FEW)
    column = tl.load(list_ptr + tl.minimum(rank, few - 1))
    x = tl.where(rank < few, tl.load(row_ptr + column).to(tl.float32), float("-inf"))
    lane = column % LANES
    stripe = tl.where(lane[:, None] == lane[None, :], x[None, :], float("-inf"))
    largest = tl.max(stripe, axis=1)
    total = tl.sum(tl.exp2((stripe - largest[:, None]) * beta), axis=1)
    top = tl.max(x, axis=0)
    winner = _winning_stripe(largest, total, lane, top, beta, seed, offset, LANES)
    return _winning_token(tl.where(lane == winner, x, float("-inf")), column, top, beta, seed, offset, vocab_size)


@triton.jit
def _argmax(row_ptr, lanes_ptr, vocab_size, LANES: tl.constexpr, DEEP: tl.constexpr):
    """(the first of the largest logits' columns, whether the row can be drawn from)."""
    lane = tl.arange(0, LANES)
    largest, total = tl.load(lanes_ptr + lane), tl.load(lanes_ptr + LANES + lane)
    tile = tl.load(lanes_ptr + 2 * LANES + lane).to(tl.int32, bitcast=True)
    top = tl.max(largest, axis=0)
    # Equal logits may be the largest of many stripes: the first of them is in the first tile that has one.
    start = tl.min(tl.where(largest == top, tile, vocab_size), axis=0)
    column = start + tl.arange(0, DEEP)[:, None] * LANES + lane[None, :]
    is_top = load_tile(row_ptr, column, vocab_size).to(tl.float32) == top
    return tl.min(tl.min(tl.where(is_top, column, vocab_size), axis=0), axis=0), tl.sum(total, axis=0) > 0.0


# A row's settings and place lie anywhere in what a step uploads. Two variants for them would be compiled while serving.
@triton.jit(
    do_not_specialize_on_alignment=[
        "temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr", "seed_ptr", "offset_ptr", "token_ptr",
    ],
)  # fmt: skip
def _sample_kernel(
    logits_ptr, row_stride, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seed_ptr, seed_stride, offset_ptr,
    token_ptr,
    lanes_ptr, counters_ptr,
    list_ptr,  # [b, MOST], of rows that top-k or top-p cuts
    kept_ptr,  # [b, vocab] where REPORT, else not looked at
    vocab_size,
    NOT_FINITE: tl.constexpr, REPORT: tl.constexpr, LANES: tl.constexpr, DEEP: tl.constexpr, TILES: tl.constexpr,
    RANK: tl.constexpr, MOST: tl.constexpr, FEW: tl.constexpr, TILE: tl.constexpr, SHIFT: tl.constexpr,
    BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_kernel_before(DEPENDENT)
    row = tl.program_id(1).to(tl.int64)
    row_ptr, lanes_ptr, list_ptr = logits_ptr + row * row_stride, lanes_ptr + row * (3 * LANES), list_ptr + row * MOST
    is_greedy = tl.load(temperature_ptr + row) == 0.0
    is_filtered, beta, top_k, top_p, min_p = load_settings(
        row, vocab_size, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr
    )
    goes_on, cut, last, few = tl.program_id(0) == 0, tl.full([], float("-inf"), tl.float32), vocab_size, 0
    if is_filtered:
        goes_on, cut, last, few = cut_row(
            row_ptr, lanes_ptr, counters_ptr + 2 * row, list_ptr, vocab_size, beta, top_k, top_p, min_p,
            LANES, RANK, MOST, FEW, TILE, SHIFT, BLOCK,
        )  # fmt: skip
    if not goes_on:
        return
    can_draw = few > 0
    if few > 0:
        seed, offset = tl.load(seed_ptr + row * seed_stride), tl.load(offset_ptr + row).to(tl.int64)
        token = _draw_of_few(row_ptr, list_ptr, few, beta, seed, offset, vocab_size, FEW, LANES)
    elif is_greedy:
        token, can_draw = _argmax(row_ptr, lanes_ptr, vocab_size, LANES, DEEP)
    else:
        lane = tl.arange(0, LANES)
        if is_filtered:
            largest, total, _ = sum_stripes(row_ptr, vocab_size, beta, cut, last, 0, True, LANES, LANES, DEEP)
        else:
            largest, total = tl.load(lanes_ptr + lane), tl.load(lanes_ptr + LANES + lane)
        seed, offset = tl.load(seed_ptr + row * seed_stride), tl.load(offset_ptr + row).to(tl.int64)
        top = tl.max(largest, axis=0)
        winner = _winning_stripe(largest, total, lane, top, beta, seed, offset, LANES)
        stripe = winner + tl.arange(0, TILES) * LANES
        x = load_tile(row_ptr, stripe, vocab_size).to(tl.float32)
        x = tl.where(is_dropped(x, stripe, cut, last), float("-inf"), x)
        token = _winning_token(x, stripe, top, beta, seed, offset, vocab_size)
        can_draw = tl.sum(total, axis=0) > 0.0  # not where it is NaN
    tl.store(token_ptr + row, tl.where(can_draw, tl.minimum(token, vocab_size - 1), NOT_FINITE).to(tl.int64))
    if REPORT:
        start = 0
        while start < vocab_size:
            column, x, exists = load_row(row_ptr, start, vocab_size, BLOCK)
            kept = 1 - is_dropped(x, column, cut, last).to(tl.int8)
            tl.store(kept_ptr + row * vocab_size + column, kept, mask=exists)
            start += BLOCK


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
    part_lanes, most = min(PART_LANES, lanes), min(MOST, triton.next_power_of_2(vocab_size))
    if num_rows:
        sums = torch.empty(num_rows, 3, lanes, dtype=torch.float32, device=logits.device)
        counters = torch.empty(num_rows, 2, dtype=torch.int32, device=logits.device)
        columns = torch.empty(num_rows, most, dtype=torch.int32, device=logits.device)
        settings = filters.temperature, filters.top_k, filters.top_p, filters.min_p
        _sample_lanes_kernel[(lanes // part_lanes, num_rows)](
            logits, logits.stride(0), *settings, sums, counters, vocab_size,
            PARTS=lanes // part_lanes, LANES=part_lanes, DEEP=DEEP, **dependent_launch(logits.device), num_warps=1,
        )  # fmt: skip
        programs = min(4 if num_rows > MANY_ROWS else 16, triton.cdiv(vocab_size, TILE))
        _sample_kernel[(programs, num_rows)](
            logits, logits.stride(0), *settings, seeds, seeds.stride(0), offsets, tokens, sums, counters, columns,
            tokens if kept is None else kept, vocab_size,
            NOT_FINITE=NOT_FINITE, REPORT=kept is not None, LANES=lanes, DEEP=DEEP,
            TILES=triton.next_power_of_2(triton.cdiv(vocab_size, lanes)),
            RANK=RANK, MOST=most, FEW=min(FEW, most), TILE=TILE, SHIFT=_SHIFTS[logits.dtype],
            BLOCK=min(BLOCK, max(128, triton.next_power_of_2(vocab_size))),
            **dependent_launch(logits.device), num_warps=NUM_WARPS,
            **({"maxnreg": MOST_REGISTERS} if kept is None and gpu_of(logits.device).vendor == "nvidia" else {}),
        )  # fmt: skip
    return tokens
