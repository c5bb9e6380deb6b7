"""Sampling a row in one program: temperature, top-k, top-p, min-p, and the exponential race.

    pass 1         largest and smallest logit
    passes 2..     top-k's threshold, counting                        where top-k is on
    1 pass         mass of what top-k left (of everything without it) ┐
    passes         top-p's threshold, summing                         ┘ where top-p is on
    last pass      the race: each kept token gets exp(...) / Exp(1) noise, and the largest is drawn

Nothing but the token leaves the program: no sorted copy, no probabilities, no mask. A row of 151,936 logits in bfloat16
is 304 KB and comes from memory in the first pass. A program of 16 warps fills a multiprocessor's registers, so an H200
runs 132 rows at once: 40 MB, which its L2 of 50 MB keeps for the other passes. A batch of 256 such rows is 78 MB, 18
microseconds of bandwidth. The other passes (5 to 12 in all with one threshold or two) are bound by some 30 instructions
a logit. In float32 a row is twice as long, and half of what is read again comes from memory.

Tiles and order of summation are the same for every batch, and the noise of a token depends on three numbers only: the
row's seed, the row's position and the token. So a row draws the same token in any company.

vLLM: v1/sample/ops/topk_topp_triton.py (the filters), v1/worker/gpu/sample/gumbel.py (the noise)
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from folovllm.attention.backends.triton import TritonBackend
from folovllm.sample.filters import Filters
from folovllm.sample.kernels.threshold import count_and_mass, extremes, find_threshold, key_of, load_row, value_of

if TYPE_CHECKING:
    import triton
    import triton.language as tl
else:
    from folovllm.utils.triton_import import tl, triton

# Columns a step: 4 for each thread of 16 warps. Counts and masses for 4 pivots are then 32 registers a thread.
BLOCK = 2048
NUM_WARPS = 16
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
def noise(seed, position, column):
    """Philox's first word under the key `seed` at the counter (column, position), as Exp(1).

    A counter-based generator has no state: the number is the same wherever and whenever it is computed.
    """
    low, high = position.to(tl.uint32), (position >> 32).to(tl.uint32)
    bits, _, _, _ = tl.philox(seed, column, low, high, 0)
    return exponential(bits)


@triton.jit
def _sample_kernel(
    logits_ptr,
    row_stride,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seed_ptr,
    seed_stride,
    position_ptr,
    token_ptr,
    kept_ptr,  # [b, vocab] where REPORT, else not looked at
    vocab_size,
    REPORT: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * row_stride
    beta = (1.0 / tl.load(temperature_ptr + row)).to(tl.float32)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row).to(tl.float32)
    top, floor, possible = extremes(row_ptr, vocab_size, BLOCK)
    top_k = tl.minimum(tl.load(top_k_ptr + row), possible).to(tl.int32)

    # Kept are the keys above `lo`, and of those equal to it the first `ties` of the row.
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

    seed, position = tl.load(seed_ptr + row * seed_stride), tl.load(position_ptr + row)
    best = tl.full([BLOCK], -1.0, tl.float32)
    winner = tl.zeros([BLOCK], tl.int32)
    seen = tl.zeros([], tl.int32)  # ties of the tiles before
    some_ties_go = ties < vocab_size
    start = 0
    while start < vocab_size:
        column, x, exists = load_row(row_ptr, start, vocab_size, BLOCK)
        key = key_of(x, SHIFT)
        weight = tl.exp((x - top) * beta)
        kept = (key >= lo) & exists & (weight >= min_p)
        if some_ties_go:
            tie = ((key == lo) & exists).to(tl.int32)
            num_ties = tl.sum(tie, axis=0)
            if num_ties > 0:
                rank = seen + tl.cumsum(tie, axis=0)  # from 1
                kept &= (key > lo) | (rank <= ties)
                seen += num_ties
        if tl.max(kept.to(tl.int32), axis=0) > 0:  # after top-k most tiles hold no kept token, and need no noise
            finish = tl.where(kept, weight / noise(seed, position, column), -1.0)
            winner = tl.where(finish > best, column, winner)
            best = tl.maximum(best, finish)
        if REPORT:
            tl.store(kept_ptr + row * vocab_size + column, kept.to(tl.int8), mask=exists)
        start += BLOCK
    first = tl.max(best, axis=0)
    token = tl.min(tl.where(best == first, winner, vocab_size), axis=0)
    tl.store(token_ptr + row, tl.minimum(token, vocab_size - 1).to(tl.int64))


@triton.jit
def _weight(key, top, beta, SHIFT: tl.constexpr):
    """The weight of the tokens with this key, in float64, but not 0: it divides."""
    return tl.maximum(tl.exp((value_of(key, SHIFT) - top) * beta), 1e-38).to(tl.float64)


def sample(logits: Tensor, filters: Filters, seeds: Tensor, positions: Tensor) -> Tensor:
    """One token id for each row of `logits` [b, vocab], on the device: [b] int64, and no host sync.

    seeds, positions: int64 [b] each. Rows with the same pair have the same noise. `seeds` may be expanded.
    """
    return _launch(logits, filters, seeds, positions, None)


def kept_tokens(logits: Tensor, filters: Filters) -> Tensor:
    """Which tokens may be drawn, bool [b, vocab]: what the kernel decides before it draws."""
    kept = torch.zeros(logits.shape, dtype=torch.int8, device=logits.device)
    nothing = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    _launch(logits, filters, nothing, nothing, kept)
    return kept.bool()


def _launch(logits: Tensor, filters: Filters, seeds: Tensor, positions: Tensor, kept: Tensor | None) -> Tensor:
    if (reason := TritonBackend.unavailable_reason(logits.device)) is not None:
        raise ValueError(f"draw 'triton' cannot run on {str(logits.device)!r}: {reason}")
    num_rows, vocab_size = logits.shape
    if logits.dtype not in _SHIFTS:
        raise ValueError(f"logits must be one of {[str(dtype) for dtype in _SHIFTS]}, got {logits.dtype}")
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
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
            positions,
            tokens,
            tokens if kept is None else kept,
            vocab_size,
            REPORT=kept is not None,
            SHIFT=_SHIFTS[logits.dtype],
            BLOCK=min(BLOCK, max(128, triton.next_power_of_2(vocab_size))),
            num_warps=NUM_WARPS,
        )
    return tokens
