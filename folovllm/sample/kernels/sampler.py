"""Sampling a row in one program: temperature, top-k, top-p, min-p, and a draw by two races; or the argmax.

    by several programs a row (cut.py)       the sum of each stripe's weights; where filters are on, what is kept
    by one, where filters are on             the same sums again, of what is kept
            always                           can the row be drawn from? two races: among the stripes, then inside of the
                                             winning one

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
from folovllm.sample.kernels.cut import find_cuts, is_dropped, load_settings, load_tile, sum_stripes
from folovllm.sample.kernels.threshold import load_row
from folovllm.utils.dependent_launch import dependent_launch, wait_for_kernel_before
from folovllm.utils.gpus import gpu_of

NUM_WARPS = 8
# Stripes of a row, 8 for each thread: 16 bytes of bfloat16. It decides which noise a token has, so it is the same for
# every row.
LANES = 2048
DEEP = 8  # tokens of a stripe that are read at once
MOST_REGISTERS = 128  # of a thread that reports nothing: two rows are drawn on a multiprocessor at a time
BLOCK = 1024  # columns of which is told at once whether they are kept
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


# A row's settings and place lie anywhere in what a step uploads. Two variants for them would be compiled while serving.
@triton.jit(
    do_not_specialize_on_alignment=[
        "temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr", "seed_ptr", "offset_ptr", "token_ptr",
    ],
)  # fmt: skip
def _sample_kernel(
    logits_ptr, row_stride, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seed_ptr, seed_stride, offset_ptr,
    token_ptr,
    cut_ptr, last_ptr,  # of rows that are filtered
    lanes_ptr,
    kept_ptr,  # [b, vocab] where REPORT, else not looked at
    vocab_size,
    NOT_FINITE: tl.constexpr, REPORT: tl.constexpr, LANES: tl.constexpr, DEEP: tl.constexpr,
    TILES: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_kernel_before(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * row_stride
    is_greedy = tl.load(temperature_ptr + row) == 0.0
    is_filtered, beta, _, _, _ = load_settings(row, vocab_size, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr)
    cut = tl.full([], float("-inf"), tl.float32)
    last = vocab_size
    if is_filtered:
        cut, last = tl.load(cut_ptr + row), tl.load(last_ptr + row)
        largest, total, tile = sum_stripes(row_ptr, vocab_size, beta, cut, last, 0, True, LANES, LANES, DEEP)
    else:
        lane_at = lanes_ptr + row * (3 * LANES) + tl.arange(0, LANES)
        largest, total = tl.load(lane_at), tl.load(lane_at + LANES)
        tile = tl.load(lane_at + 2 * LANES).to(tl.int32, bitcast=True)
    if REPORT:
        start = 0
        while start < vocab_size:
            column, x, exists = load_row(row_ptr, start, vocab_size, BLOCK)
            kept = 1 - is_dropped(x, column, cut, last).to(tl.int8)
            tl.store(kept_ptr + row * vocab_size + column, kept, mask=exists)
            start += BLOCK

    top = tl.max(largest, axis=0)
    lanes = tl.arange(0, LANES)
    if is_greedy:
        # Equal logits may be the largest of many stripes: the first of them is in the first tile that has one.
        start = tl.min(tl.where(largest == top, tile, vocab_size), axis=0)
        column = start + tl.arange(0, DEEP)[:, None] * LANES + lanes[None, :]
        is_top = load_tile(row_ptr, column, vocab_size).to(tl.float32) == top
        token = tl.min(tl.min(tl.where(is_top, column, vocab_size), axis=0), axis=0)
    else:
        seed, offset = tl.load(seed_ptr + row * seed_stride), tl.load(offset_ptr + row).to(tl.int64)
        score = (largest - top) * beta + tl.log2(tl.maximum(total, 1e-30)) - tl.log2(noise(seed, offset, lanes, 0))
        winner = tl.min(tl.where(score == tl.max(score, axis=0), lanes, LANES - 1), axis=0)
        stripe = winner + tl.arange(0, TILES) * LANES
        x = load_tile(row_ptr, stripe, vocab_size).to(tl.float32)
        x = tl.where(is_dropped(x, stripe, cut, last), float("-inf"), x)
        place = (x - top) * beta - tl.log2(noise(seed, offset, stripe, 1))
        token = tl.min(tl.where(place == tl.max(place, axis=0), stripe, vocab_size), axis=0)
    can_draw = tl.sum(total, axis=0) > 0.0  # not where it is NaN
    tl.store(token_ptr + row, tl.where(can_draw, tl.minimum(token, vocab_size - 1), NOT_FINITE).to(tl.int64))


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
        cut, last, sums = find_cuts(logits, filters, _SHIFTS[logits.dtype], lanes, DEEP)
        _sample_kernel[(num_rows,)](
            logits, logits.stride(0), filters.temperature, filters.top_k, filters.top_p, filters.min_p,
            seeds, seeds.stride(0), offsets, tokens, cut, last, sums,
            tokens if kept is None else kept, vocab_size,
            NOT_FINITE=NOT_FINITE, REPORT=kept is not None, LANES=lanes, DEEP=DEEP,
            TILES=triton.next_power_of_2(triton.cdiv(vocab_size, lanes)),
            BLOCK=min(BLOCK, max(128, triton.next_power_of_2(vocab_size))),
            **dependent_launch(logits.device), num_warps=NUM_WARPS,
            **({"maxnreg": MOST_REGISTERS} if kept is None and gpu_of(logits.device).vendor == "nvidia" else {}),
        )  # fmt: skip
    return tokens
