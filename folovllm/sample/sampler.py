"""The sampler: logits [B, vocab] in, one token per row out, and logprobs where they were asked for.

    masks ─▶ bias ─▶ custom ─▶ penalties ─▶ temperature ─▶ top-k ─▶ top-p ─▶ min-p ─▶ draw
    └─ edits of a few logits, float32 ──┘   └─ among the likeliest tokens, float64 ──────┘

vLLM: v1/sample/sampler.py, v1/worker/gpu/sample/sampler.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from folovllm.sample.draw import (
    Generators,
    draw_exponential_race,
    draw_inverse_cdf,
    exponentials,
    mark_failed_draws,
    uniforms,
)
from folovllm.sample.filters import Pool, find_candidates
from folovllm.sample.logprobs import LogprobsTensors, candidate_logprobs, gather_logprobs
from folovllm.sample.metadata import SamplingMetadata

CACHED = 1 << 19
"""Logits, 2 MiB in float32: what stays in a cache between being converted and being searched."""


@dataclass(slots=True)
class SamplerOutput:
    """One step's tokens; `logprobs` is None when no row needs any."""

    token_ids: Tensor  # [B] int64; a row that could not be drawn from has a code of sample/draw.py
    logprobs: LogprobsTensors | None = None


class DrawingRows(Protocol):
    """Rows that draw for themselves: the sampler only edits their logits before and reports log-probabilities after."""

    def take(self, rows: Tensor | slice) -> DrawingRows: ...

    def draw(self, raw: Tensor, edited: Tensor, metadata: SamplingMetadata) -> tuple[Tensor, list[Pool]]:
        """As sample() has them. Token ids [b], or codes of draw.py; what they were drawn from, if it is reported."""


class Sampler:
    """Draws one token per row. Holds no state: that is in the rows and their generators.

    `draw`: "inverse_cdf" is faster on a CPU, "exponential_race" on a GPU; "auto" goes by the logits' device.
    """

    def __init__(self, draw: Literal["auto", "inverse_cdf", "exponential_race"] = "auto") -> None:
        self.draw = draw

    def __call__(self, logits: Tensor, metadata: SamplingMetadata, drawing: DrawingRows | None = None) -> SamplerOutput:
        """`logits` [B, vocab] of any float type, which are not written to; row i is row i of the metadata."""
        return self.sample(logits, metadata.edit(logits) if metadata.processors else logits, metadata, drawing)

    def sample(
        self, raw: Tensor, edited: Tensor, metadata: SamplingMetadata, drawing: DrawingRows | None = None
    ) -> SamplerOutput:
        """raw, edited: the logits before and after the edits, the same tensor where nothing was edited."""
        group = metadata.group
        pools: list[Pool] = []
        if drawing is not None:
            token_ids, pools = drawing.draw(raw, edited, metadata)
        elif group.path == "greedy":
            token_ids = mark_failed_draws(greedy(edited), raw, edited, is_greedy=True)
        else:
            pools = find_candidates(edited, metadata.filters, group.path, group.width)
            token_ids = mark_failed_draws(self.draw_from(pools, metadata.generators), raw, edited)
        if group.num_logprobs is None:
            return SamplerOutput(token_ids)
        if group.logprobs_mode == "processed" and pools:
            logprobs = drawn_from(pools, raw.shape[-1])
        else:  # a greedy row draws from nothing: processed ones are those that the argmax was taken of
            logprobs = (edited if group.logprobs_mode == "processed" else raw).float().log_softmax(dim=-1)
        return SamplerOutput(token_ids, gather_logprobs(logprobs, group.num_logprobs, token_ids.clamp(min=0)))

    def draw_from(self, pools: list[Pool], generators: Generators) -> Tensor:
        parts = []
        for rows, candidates in pools:
            weights, own = candidates.weights, generators
            if len(pools) > 1:
                own = [generators[row] for row in rows]
            if self.draw == "exponential_race" or (self.draw == "auto" and weights.device.type != "cpu"):
                parts.append(draw_exponential_race(candidates, exponentials(weights.shape, own, weights.device)))
            else:
                parts.append(draw_inverse_cdf(candidates, uniforms(own, weights.device)))
        return parts[0] if len(pools) == 1 else torch.cat(parts)[_order(pools)]


def greedy(logits: Tensor) -> Tensor:
    """The first of the largest logits of each row, [b].

    On a CPU numpy finds it, 2 to 10 times as fast: its argmax is vectorised, where torch's takes one number after
    the other. numpy knows no bfloat16, so such rows are converted, a few at a time to stay in the caches.
    """
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    rows = max(1, CACHED // logits.shape[-1])
    if logits.dtype != torch.float32 and len(logits) > rows:
        return torch.cat([greedy(part) for part in logits.split(rows)])
    return torch.from_numpy(np.argmax(logits.detach().float().numpy(), axis=-1))


def drawn_from(pools: list[Pool], vocab_size: int) -> Tensor:
    """log of the distribution that each row was drawn from, [b, vocab]."""
    parts = [candidate_logprobs(candidates, vocab_size) for _, candidates in pools]
    return parts[0] if len(pools) == 1 else torch.cat(parts)[_order(pools)]


def _order(pools: list[Pool]) -> Tensor:
    """Where each row's result is among those of all pools, one after the other."""
    return torch.tensor([row for rows, _ in pools for row in rows]).argsort()
