"""Log-probabilities beside the drawn tokens: of the token itself, and of the likeliest ones.

vLLM: v1/sample/sampler.py (gather_logprobs), v1/outputs.py (LogprobsTensors)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from folovllm.sample.filters import Candidates, top_k


@dataclass(slots=True)
class LogprobsTensors:
    """Column 0 is the chosen token, columns 1.. the K likeliest in falling order; rank 1 is the best."""

    token_ids: Tensor  # [B, K + 1] int64
    logprobs: Tensor  # [B, K + 1] float32
    ranks: Tensor  # [B] int64


def gather_logprobs(logprobs: Tensor, k: int, token_ids: Tensor) -> LogprobsTensors:
    """Reads `token_ids` [B] and the k likeliest (at most all) out of `logprobs` [B, vocab].

    The rank counts the tokens that are strictly likelier: a token that ties with the best has rank 1.
    """
    chosen = token_ids.to(torch.int64).unsqueeze(-1)
    own = logprobs.gather(1, chosen)
    ranks = (logprobs > own).sum(dim=-1) + 1
    if k == 0:
        return LogprobsTensors(chosen, own, ranks)
    values, ids = top_k(logprobs, min(k, logprobs.shape[-1]))
    return LogprobsTensors(torch.cat([chosen, ids], dim=1), torch.cat([own, values], dim=1), ranks)


def candidate_logprobs(candidates: Candidates, vocab_size: int) -> Tensor:
    """log of the distribution that was really drawn from, [b, vocab] float32: excluded tokens have -inf."""
    weights = candidates.weights.double()
    if candidates.keep is not None:
        columns = torch.arange(weights.shape[-1], device=weights.device)
        weights = weights.masked_fill(columns >= candidates.keep, 0.0)
    logprobs = (weights / weights.sum(dim=-1, keepdim=True)).log().float()
    if candidates.ids is None:
        return logprobs
    full = torch.full((len(weights), vocab_size), -torch.inf, device=weights.device)
    return full.scatter_(1, candidates.ids, logprobs)
