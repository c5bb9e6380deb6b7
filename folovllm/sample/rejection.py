"""Rejection sampling: a token that a draft model drew becomes one that the target might as well have drawn.

    token              a     b     c
    draft q           .3    .6    .1     b is drafted more often than the target wants it: it is kept with p/q = 1/2
    target p          .5    .3    .2
    min(p, q)         .3    .3    .1     how often a token is drafted and kept
    max(0, p - q)     .2     0    .1     what then lacks: .3 in all, as much as is refused; a refused b becomes a or c
    together          .5    .3    .2     the target's distribution, whatever the draft's is

Such a draw takes the place of an ordinary one: verify() goes on while what is drawn is what the draft said, and a
refused token is never drawn again, since its residual is 0.

vLLM: v1/sample/rejection_sampler.py. Leviathan et al. 2022 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from folovllm.sample.draw import Generators, draw_inverse_cdf, mark_failed_draws, uniforms
from folovllm.sample.filters import Candidates, Pool, find_candidates
from folovllm.sample.gumbel import GumbelRows
from folovllm.sample.metadata import SamplingMetadata
from folovllm.sample.sampler import Sampler, drawn_from, greedy


def accept_or_replace(target: Tensor, draft: Tensor, drafted: Tensor, generators: Generators) -> tuple[Tensor, Tensor]:
    """Whether each drafted token is kept, [b] bool, and the token ids [b] int64: the drafted one, or its replacement.

    target, draft: [b, vocab] probabilities, each after its own filters. drafted: [b] int64, drawn from `draft`, which
    is not 0 there. A row takes one number of its generator, as an ordinary draw does.
    """
    at = drafted.unsqueeze(-1)
    wanted, had = target.gather(1, at).double(), draft.gather(1, at).double()
    ratio = wanted / had
    residual = (target - draft).clamp_(min=0.0)
    # Nothing lacks: the two are the same but for rounding, and the token is good.
    is_same = residual.amax(dim=-1, keepdim=True) == 0
    uniform = uniforms(generators, target.device)
    accepted = (uniform < ratio) | is_same
    # A refused row's number is uniform in [ratio, 1). Stretched to [0, 1), it is as good as another one.
    rest = torch.where(accepted, 0.0, (uniform - ratio) / (1.0 - ratio))
    replacement = draw_inverse_cdf(Candidates(residual), rest)
    accepted = accepted.squeeze(-1)
    return accepted, torch.where(accepted, drafted, replacement)


@dataclass(slots=True)
class DraftedRows:
    """Rows of which some have a token that a draft model drew: it is kept or replaced. The others are drawn as ever."""

    drafted: Tensor
    """[b] int64."""
    probs: Tensor
    """[b, vocab] what the token was drawn from; zeros where there is none, or where a seed decides."""
    gumbel: GumbelRows | None = None
    """The same rows, where the sampling kernel draws; None: generators do."""

    def take(self, rows: Tensor | slice) -> DraftedRows:
        return DraftedRows(self.drafted[rows], self.probs[rows], self.gumbel and self.gumbel.take(rows))

    def draw(self, raw: Tensor, edited: Tensor, metadata: SamplingMetadata) -> tuple[Tensor, list[Pool]]:
        if self.gumbel is not None:
            tokens, pools = self.gumbel.draw(raw, edited, metadata)
        elif metadata.group.path == "greedy":
            return mark_failed_draws(greedy(edited), raw, edited, is_greedy=True), []
        else:
            pools = find_candidates(edited, metadata.filters, metadata.group.path, metadata.group.width)
            tokens = mark_failed_draws(Sampler().draw_from(pools, metadata.generators), raw, edited)
        if not pools:
            return tokens, pools
        target = drawn_from(pools, raw.shape[-1]).exp()
        _, checked = accept_or_replace(target, self.probs, self.drafted, [None] * len(tokens))
        # NaN, where the draft's activations overflowed, is no draft token either.
        is_drafted = self.probs.gather(1, self.drafted.unsqueeze(-1)).squeeze(-1) > 0
        return torch.where(is_drafted & (tokens >= 0), checked, tokens), pools
