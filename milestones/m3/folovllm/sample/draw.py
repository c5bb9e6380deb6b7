"""Draws one column per row with probability proportional to its weight, in two ways that agree.

- Inverse CDF: lay the weights end to end, throw one uniform number at the line, take the column it falls on.
- Exponential race: column i finishes at time Exp(1) / weight_i; the first to finish is i with probability
  weight_i / sum of weights. No sums, no search, hence the better one where thousands of threads run at once.

Neither can return a column of weight zero. Both consume exactly one call of a row's own generator.

vLLM: v1/sample/ops/topk_topp_sampler.py (random_sample)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from folovllm.errors import LogitsNotFiniteError, NoTokenLeftError
from folovllm.sample.filters import Candidates
from folovllm.sampling_params import SamplingParams

Generators = Sequence[torch.Generator | None]

NOT_FINITE, NO_TOKEN = -1, -2
"""In place of a token id, which is never negative: why there is none."""


def uniforms(generators: Generators, device: torch.device) -> Tensor:
    """One float64 in [0, 1) per row, [b, 1]: from the row's own generator, or from torch's default one."""
    drawn = torch.rand(generators.count(None), dtype=torch.float64, device=device)
    if len(drawn) < len(generators):
        default = iter(drawn)
        drawn = torch.stack(
            [
                next(default) if one is None else torch.rand((), dtype=torch.float64, device=device, generator=one)
                for one in generators
            ]
        )
    return drawn.unsqueeze(-1)


def exponentials(shape: torch.Size, generators: Generators, device: torch.device) -> Tensor:
    """Exp(1) noise [b, K] float32; a seeded row's comes from its own generator in one call."""
    noise = torch.empty(shape, dtype=torch.float32, device=device)
    if None in generators:
        noise.exponential_()  # for all rows: to pick some, a GPU would need their numbers from the host
    for row, generator in enumerate(generators):
        if generator is not None:
            noise[row].exponential_(generator=generator)
    return noise


def draw_inverse_cdf(candidates: Candidates, uniform: Tensor) -> Tensor:
    """Token ids [b] where `uniform` [b, 1] falls on the candidates' cumulative weights.

    In float64: a running sum over 151,936 weights loses the tail in float32, where a weight of 1e-8 no longer moves a
    sum near 1.
    """
    cumulative = candidates.weights.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[:, -1:] if candidates.keep is None else cumulative.gather(1, candidates.keep - 1)
    # right=True steps over columns of weight zero. uniform * total may round up to the total itself, which no column
    # covers: the second search finds the last column with any weight, and the draw falls on that.
    column = torch.searchsorted(cumulative, uniform * total, right=True)
    last = torch.searchsorted(cumulative, total.contiguous())
    return _as_token_ids(candidates.ids, column.minimum(last).clamp(max=cumulative.shape[-1] - 1))


def draw_exponential_race(candidates: Candidates, noise: Tensor) -> Tensor:
    """Token ids [b] of the winners of the race; `noise` [b, K] is Exp(1), never zero."""
    weights = candidates.weights
    if candidates.keep is not None:
        columns = torch.arange(weights.shape[-1], device=weights.device)
        weights = weights.masked_fill(columns >= candidates.keep, 0.0)
    return _as_token_ids(candidates.ids, (weights / noise).argmax(dim=-1, keepdim=True))


def _as_token_ids(ids: Tensor | None, column: Tensor) -> Tensor:
    return (column if ids is None else ids.gather(1, column)).squeeze(-1)


def mark_failed_draws(drawn: Tensor, raw: Tensor, edited: Tensor) -> Tensor:
    """`drawn` [b], with NOT_FINITE or NO_TOKEN for the rows that could not be drawn from.

        raw      as the model gave it            NaN, +inf, or nothing but -inf    NOT_FINITE    activations overflowed
        edited   after masks, biases, penalties  the same                          NO_TOKEN      parameters left none

    raw, edited: logits [b, vocab], the same tensor where nothing was edited. -inf beside finite logits is a mask, and
    fine. The largest logit shows all of this, since NaN wins every maximum. So what is wrong comes to the host together
    with the tokens, and nothing waits for it.
    """
    marked = drawn.masked_fill(~edited.amax(dim=-1).isfinite(), NOT_FINITE if edited is raw else NO_TOKEN)
    return marked if edited is raw else marked.masked_fill_(~raw.amax(dim=-1).isfinite(), NOT_FINITE)


def sampling_error(code: int, request_id: str, params: SamplingParams) -> Exception:
    """The error for a request of which a row has this code."""
    if code == NOT_FINITE:
        return LogitsNotFiniteError(
            f"request {request_id!r}: its logits are not finite, the model's activations overflowed: use "
            f"dtype='float32' or 'bfloat16', whose range is wider than that of float16, or check the weights"
        )
    off = SamplingParams()
    names = ["allowed_token_ids", "bad_words", "min_tokens", "logit_bias", "extra_args"]
    names += ["repetition_penalty", "frequency_penalty", "presence_penalty"]
    changed = [name for name in names if getattr(params, name) not in (None, {}, getattr(off, name))]
    return NoTokenLeftError(
        f"request {request_id!r}: no token is left to draw, all logits are -inf, or some are NaN or +inf, after "
        f"{', '.join(changed)}: relax these"
    )
