"""Top-k, top-p and min-p, in the space of the few likeliest tokens instead of the whole vocabulary.

The one idea: with tokens in falling order every filter keeps a PREFIX, so all three together are one number.

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

# Without top-k, top-p and min-p look at this many of the likeliest tokens first.
NARROW_WIDTH = 1024
# The bits of 1.0, the largest weight, without its lower 16: one more than this is the number of bins.
_TOP_BIN = 0x3F80


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

    def take(self, rows: list[int]) -> Filters:
        """The settings of some of the rows."""
        return Filters(self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows])


@dataclass(slots=True)
class Candidates:
    """What is left to draw from: token `ids[row, column]` with unnormalised `weights`, 1 for the likeliest.

    With `keep`, columns are in falling order and only the first `keep[row]` are in; `cumulative` is the
    running sum. Without `ids` (and then without `keep`) the columns are the vocabulary itself and what is
    excluded weighs 0.
    """

    weights: Tensor  # [b, K]
    ids: Tensor | None = None  # [b, K]
    keep: Tensor | None = None  # [b, 1]
    cumulative: Tensor | None = None  # [b, K] float64

    def take(self, rows: list[int]) -> Candidates:
        """The candidates of some of the rows."""
        tensors = (self.ids, self.keep, self.cumulative)
        return Candidates(self.weights[rows], *(None if tensor is None else tensor[rows] for tensor in tensors))


# Candidates, and which rows they are for.
Pool = tuple[list[int], Candidates]


def path_of(params: SamplingParams, vocab_size: int) -> tuple[str, int]:
    """Where a row's candidates are searched for, and among how many of the likeliest tokens:

    top_k    the k likeliest, then everything among those       top_k, whatever else
    top_p    the 1,024 likeliest and the sum over all           top_p without top_k
    min_p    the 1,024 likeliest                                min_p alone
    full     the whole vocabulary                               temperature alone
    """
    if 0 < params.top_k < vocab_size:
        width = 64  # 64, 256, 1024, ...: few different widths, and a row's depends on its own k alone
        while width < params.top_k:
            width *= 4
        return "top_k", min(width, vocab_size)
    if params.top_p < 1.0:
        return "top_p", min(NARROW_WIDTH, vocab_size)
    if params.min_p > 0.0:
        return "min_p", min(NARROW_WIDTH, vocab_size)
    return "full", vocab_size


def top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row in falling order, and where they are; exactly k, also where logits are equal.

    Two stages: cut the row into blocks, then search only the k blocks with the largest maxima. Each of the k largest
    numbers is in one of these: else there would be k maxima larger than it. The maxima are found at the speed of
    memory, so a row of 151,936 takes a third of the time of torch.topk over all of it.
    """
    vocab_size = logits.shape[-1]
    block = 32 if k <= 256 else 8
    num_blocks = vocab_size // block
    if k == vocab_size:
        values, ids = logits.sort(dim=-1, descending=True)
        return values, ids
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


def find_candidates(logits: Tensor, filters: Filters, path: str, width: int) -> list[Pool]:
    """The tokens that may be drawn, for rows of one path: one pool; on a CPU two where some rows must look at more
    tokens."""
    rows, vocab_size = list(range(len(logits))), logits.shape[-1]
    if path == "full":
        return [(rows, Candidates(full_weights(logits, filters.temperature)))]
    if path != "top_k" and logits.device.type != "cpu":  # to ask which rows need more would make the host wait
        width = vocab_size
    if path == "top_k" or width == vocab_size:
        return [(rows, keep_prefix(logits, filters, width))]
    mass = None
    if path == "top_p":
        mass = full_weights(logits, filters.temperature).sum(dim=-1, keepdim=True, dtype=torch.float64)
    found = keep_prefix(logits, filters, width, mass)
    inside = _is_complete(found, filters, mass)
    if all(inside):
        return [(rows, found)]
    near, far = ([row for row in rows if inside[row] is wanted] for wanted in (True, False))
    pools = [(near, found.take(near))] if near else []
    filters = filters.take(far)
    weights = full_weights(logits[far], filters.temperature)
    if path == "top_p":
        _cut_at_line(weights, filters.top_p)
    return [*pools, (far, Candidates(weights.masked_fill_(weights < filters.min_p, 0.0)))]


def keep_prefix(logits: Tensor, filters: Filters, width: int, mass: Tensor | None = None) -> Candidates:
    """The `width` largest logits of each row, and how many of them stay.

    Top-p keeps tokens until their weights reach top_p * mass. `mass` [b, 1] is the weight of all tokens that top-p
    chooses from. By default these are the top_k likeliest, as top-k comes first; without top-k the caller gives the
    weight of the whole row.
    """
    values, ids = top_k(logits, width)
    values = values.double()
    weights = ((values - values[:, :1]) / filters.temperature).exp()
    cumulative = weights.cumsum(dim=-1)
    limit = filters.top_k.clamp(max=width)
    if mass is None:
        mass = cumulative.gather(1, limit - 1)
    # A token is kept if the sum BEFORE it has not reached the line: so the one that crosses the line is kept.
    kept = (cumulative - weights < filters.top_p * mass) & (weights >= filters.min_p)
    keep = kept.sum(dim=-1, keepdim=True).clamp(min=1).minimum(limit)
    return Candidates(weights, ids, keep, cumulative)


def _is_complete(found: Candidates, filters: Filters, mass: Tensor | None) -> list[bool]:
    """Per row, whether no token beyond `found` can be in: top-p's line or min-p's bound is within it."""
    assert found.cumulative is not None
    complete = found.weights[:, -1:] < filters.min_p
    if mass is not None:
        complete |= found.cumulative[:, -1:] >= filters.top_p * mass
    answer: list[bool] = complete.squeeze(-1).tolist()
    return answer


def _cut_at_line(weights: Tensor, top_p: Tensor) -> None:
    """Top-p over the whole vocabulary, in place, with a sort of one bin instead of all tokens.

    The upper 16 bits of a positive float32 are a logarithmic scale (they are its bfloat16): 128 bins for each
    power of two. The sums of the bins tell in which bin the line is crossed. Tokens in higher bins are kept, those in
    lower bins are not. Only the tokens inside that bin, some hundreds, must be sorted.
    """
    bins = (weights.view(torch.int32) >> 16).clamp_(0, _TOP_BIN)
    for row_bins, row_weights, share in zip(bins, weights, top_p, strict=True):
        falling = row_bins.bincount(row_weights.double(), minlength=_TOP_BIN + 1).flip(0).cumsum(0)
        line = share * falling[-1]
        place = torch.searchsorted(falling, line).clamp(max=_TOP_BIN)
        crossed, before = _TOP_BIN - place, torch.where(place > 0, falling[place - 1], 0.0)
        ids = (row_bins == crossed).nonzero().squeeze(-1)
        ordered, order = row_weights[ids].double().sort(descending=True, stable=True)
        out = before + ordered.cumsum(0) - ordered >= line
        row_weights[ids[order[out]]] = 0.0
        row_weights.masked_fill_(row_bins < crossed, 0.0)
