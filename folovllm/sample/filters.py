"""Top-k, top-p and min-p, in the space of the few likeliest tokens instead of the whole vocabulary.

The one idea: once tokens stand in falling order, every filter keeps a PREFIX, so all three together are one
number.

    probability   .40 .25 .15 .10 .06 .04      top_k=5     keeps 5
    reached       .40 .65 .80 .90 .96  1       top_p=0.75  keeps 3: the token that crosses the line is in
                  └───────────┘                min_p=0.3   keeps 3: those of at least 0.3 * 0.40
                    3 are kept, the other weights never enter the draw

vLLM: v1/sample/ops/topk_topp_sampler.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Tokens looked at first when top-p or min-p comes without top-k.
NARROW_WIDTH = 1024
# How far the sum of float32 weights may be off, relative to 1: the fallback keeps more tokens than it needs
# by this.
_SUM_SLACK = 1e-3


@dataclass(slots=True)
class Candidates:
    """What is left to draw from: token `ids[row, column]` with unnormalised `weights`, the likeliest weighs
    1.

    With `keep`, columns are in falling order and only the first `keep[row]` are in; `cumulative` is the
    running sum. Without `ids` (and then without `keep`) the columns are the vocabulary itself and what is
    excluded weighs 0.
    """

    weights: Tensor  # [b, K]
    ids: Tensor | None = None  # [b, K]
    keep: Tensor | None = None  # [b, 1]
    cumulative: Tensor | None = None  # [b, K] float64

    def take(self, rows: list[int]) -> Candidates:
        """The same for some of the rows."""
        tensors = (self.ids, self.keep, self.cumulative)
        return Candidates(
            self.weights[rows], *(None if tensor is None else tensor[rows] for tensor in tensors)
        )


def top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row in falling order, and where they are; exactly k, also where logits are equal.

    Two stages: cut the row into blocks, keep the k blocks with the largest maxima. Any of the k largest is in
    one of them, else k maxima would be larger than it. The maxima come at memory speed, so a row of 151,936
    takes a third of what torch.topk takes alone.
    """
    vocab_size = logits.shape[-1]
    block = 32 if k <= 256 else 8
    num_blocks = vocab_size // block
    if logits.is_cuda or k * block * 2 > vocab_size:
        values, ids = logits.topk(k, dim=-1)
        return values, ids
    # A block is a column of the row folded to [block, num_blocks]: the maximum over dim 1 is then vectorised.
    folded = logits[:, : block * num_blocks].unflatten(1, (block, num_blocks))
    best_blocks = folded.amax(dim=1).topk(k, dim=-1).indices  # [b, k]
    offsets = torch.arange(block, device=logits.device) * num_blocks
    pool = (best_blocks.unsqueeze(-1) + offsets).flatten(1)  # [b, k * block]
    if block * num_blocks < vocab_size:
        rest = torch.arange(block * num_blocks, vocab_size, device=logits.device)
        pool = torch.cat([pool, rest.expand(len(pool), -1)], dim=1)
    values, position = logits.gather(1, pool).topk(k, dim=-1)
    return values, pool.gather(1, position)


def full_weights(logits: Tensor, temperature: Tensor) -> Tensor:
    """exp((logit - max) / temperature) [b, vocab] float32: a softmax without its division, in one buffer."""
    weights = logits.to(torch.float32, copy=True)
    # The difference is taken first: it is never positive, so a small temperature cannot overflow.
    return weights.sub_(weights.amax(dim=-1, keepdim=True)).div_(temperature.float()).exp_()


def sorted_candidates(
    values: Tensor,
    ids: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    mass: Tensor | None = None,
) -> Candidates:
    """Candidates from logits `values` [b, K] in falling order; every setting is [b, 1], top_p=inf is off.

    Top-p's line is drawn at top_p * mass: `mass` is the weight of all tokens where K does not hold them all,
    and by default that of the top_k ones, for top-k comes first.
    """
    values = values.double()
    weights = ((values - values[:, :1]) / temperature).exp()
    cumulative = weights.cumsum(dim=-1)
    limit = top_k.clamp(max=values.shape[-1])
    if mass is None:
        mass = cumulative.gather(1, limit - 1)
    keep = prefix_length(weights, cumulative, top_p * mass, min_p).minimum(limit)
    return Candidates(weights, ids, keep, cumulative)


def prefix_length(weights: Tensor, cumulative: Tensor, line: Tensor, min_weight: Tensor) -> Tensor:
    """How many of the falling weights [b, K] stay: [b, 1], at least 1.

    A token is in while the sum BEFORE it has not reached `line`: so the one that crosses the line is in.
    """
    kept = (cumulative - weights < line) & (weights >= min_weight)
    return kept.sum(dim=-1, keepdim=True).clamp(min=1)


def covered(candidates: Candidates, line: Tensor, min_p: Tensor) -> Tensor:
    """[b] bool: no token beyond the candidates can be in: top-p's line or min-p's bound lies within."""
    assert candidates.cumulative is not None
    reached = candidates.cumulative[:, -1:] >= line
    return (reached | (candidates.weights[:, -1:] < min_p)).squeeze(-1)


def wide_min_p(logits: Tensor, temperature: Tensor, min_p: Tensor) -> Candidates:
    """Candidates over the whole vocabulary under min-p alone: a comparison, no order needed."""
    weights = full_weights(logits, temperature)
    return Candidates(weights.masked_fill_(weights < min_p, 0.0))


def wide_top_p(logits: Tensor, temperature: Tensor, top_p: Tensor, min_p: Tensor) -> Candidates:
    """Candidates of ONE row [1, vocab] whose top-p set is larger than NARROW_WIDTH; top_p below 1.

    A token below (1 - top_p) * mean weight is never in that set: all such tokens together weigh less than
    (1 - top_p) of everything, so the others reach top_p without them. Only what is left gets sorted.
    """
    weights = full_weights(logits, temperature)
    mass = weights.sum(dim=-1, keepdim=True).double()
    floor = ((1 - top_p) * mass / weights.shape[-1] * (1 - _SUM_SLACK)).maximum(min_p)
    ids = (weights[0] >= floor[0].float()).nonzero().T  # [1, survivors]
    weights, order = weights.gather(1, ids).double().sort(dim=-1, descending=True, stable=True)
    cumulative = weights.cumsum(dim=-1)
    keep = prefix_length(weights, cumulative, top_p * mass, min_p)
    return Candidates(weights, ids.gather(1, order), keep, cumulative)
