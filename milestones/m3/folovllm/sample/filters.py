"""Top-k, top-p and min-p. The one idea: once tokens are in falling order, every filter keeps a PREFIX, so all three
together are one number, how many are kept.

    probability   .40 .25 .15 .10 .06 .04      top_k=5     keeps 5
    reached       .40 .65 .80 .90 .96  1       top_p=0.75  keeps 3: the token that crosses the line is in
                  └───────────┘                min_p=0.3   keeps 3: those of at least 0.3 * 0.40
                    3 are kept, the other weights never enter the draw

vLLM: v1/sample/ops/topk_topp_sampler.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from folovllm.sampling_params import SamplingParams


@dataclass(slots=True)
class Filters:
    """One setting per row, [b, 1] each; a filter that is off has a value that lets everything through."""

    temperature: Tensor  # float64
    top_k: Tensor  # int64, the vocabulary's size where off
    top_p: Tensor  # float64, inf where off
    min_p: Tensor  # float64, 0 where off

    @classmethod
    def of(cls, params: Sequence[SamplingParams], vocab_size: int, device: torch.device) -> Filters:
        def column(values: Sequence[float], dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device).unsqueeze(-1)

        return cls(
            temperature=column([p.temperature for p in params]),
            top_k=column([p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params], torch.int64),
            top_p=column([p.top_p if p.top_p < 1.0 else torch.inf for p in params]),
            min_p=column([p.min_p for p in params]),
        )


@dataclass(slots=True)
class Candidates:
    """What is left to draw from: token `ids[row, column]` with unnormalised `weights`, 1 for the likeliest.

    With `keep`, columns are in falling order and only the first `keep[row]` are in. Without `ids` (and then without
    `keep`) the columns are the vocabulary itself.
    """

    weights: Tensor  # [b, K]
    ids: Tensor | None = None  # [b, K]
    keep: Tensor | None = None  # [b, 1]


def path_of(params: SamplingParams, vocab_size: int) -> tuple[str, int]:
    """("prefix", how many of the likeliest tokens to put in order), or ("full", all) where no filter is on."""
    if 0 < params.top_k < vocab_size:
        return "prefix", params.top_k
    return ("prefix" if params.top_p < 1.0 or params.min_p > 0.0 else "full"), vocab_size


def find_candidates(logits: Tensor, filters: Filters, path: str, width: int) -> Candidates:
    """The tokens that may be drawn, for rows of one path."""
    if path == "full":
        largest = logits.amax(dim=-1, keepdim=True)
        return Candidates(((logits.double() - largest) / filters.temperature).exp())
    return keep_prefix(logits, filters, width)


def keep_prefix(logits: Tensor, filters: Filters, width: int) -> Candidates:
    """The `width` largest logits of each row, and how many of them stay."""
    values, ids = top_k(logits, width)
    values = values.double()
    # The difference is taken first: it is never positive, so a small temperature cannot overflow.
    weights = ((values - values[:, :1]) / filters.temperature).exp()
    cumulative = weights.cumsum(dim=-1)
    limit = filters.top_k.clamp(max=width)
    mass = cumulative.gather(1, limit - 1)  # top-k comes first: top-p chooses from what it left
    # A token is kept if the sum BEFORE it has not reached the line: so the one that crosses the line is kept.
    kept = (cumulative - weights < filters.top_p * mass) & (weights >= filters.min_p)
    keep = kept.sum(dim=-1, keepdim=True).clamp(min=1).minimum(limit)
    return Candidates(weights, ids, keep)


def top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row in falling order, and where they are; exactly k, also where logits are equal."""
    values, ids = logits.topk(k, dim=-1) if k < logits.shape[-1] else logits.sort(dim=-1, descending=True)
    return values, ids
