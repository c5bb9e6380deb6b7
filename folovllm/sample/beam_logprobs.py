"""What the model itself said of a beam's candidates, where processors have edited their log-probabilities.

    edited   what beams are ranked by    candidates  7   3   9    log p  -0.3  -1.2  -4.0
    raw      what "raw" reports          the same    7   3   9    log p  -0.9  -1.8  -0.7    ranks  2  4  1

Which candidate a beam goes on with is decided later, by all beams together. So a row tells of all of them.

vLLM: entrypoints/generate/beam_search/, whose beams read the log-probabilities of one-token requests
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from folovllm.sample.filters import top_k
from folovllm.sample.logprobs import LogprobsTensors


@dataclass(slots=True)
class RawCandidates:
    """For some rows; C candidates each."""

    rows: Tensor  # [b] their places in the batch
    logprobs: Tensor  # [b, C] of the candidates, in their order
    ranks: Tensor  # [b, C] theirs among the whole vocabulary
    top_ids: Tensor  # [b, C] the likeliest, in falling order
    top_logprobs: Tensor  # [b, C]

    @classmethod
    def gather(cls, rows: Tensor, raw: Tensor, candidates: Tensor) -> RawCandidates:
        """raw: log-probabilities [b, vocab] that nothing has edited; candidates: ids [b, C]."""
        own = raw.gather(1, candidates)
        ranks = [(raw > column).sum(dim=-1) + 1 for column in own.unsqueeze(-1).unbind(1)]
        values, ids = top_k(raw, candidates.shape[1])
        return cls(rows, own, torch.stack(ranks, dim=1), ids, values)


@dataclass(slots=True)
class BeamLogprobs(LogprobsTensors):
    """LogprobsTensors of a batch [B], with RawCandidates for some of its rows; the others have rank 0 there."""

    raw_logprobs: Tensor  # [B, C]
    raw_ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor

    @classmethod
    def join(cls, plain: LogprobsTensors, found: list[RawCandidates]) -> BeamLogprobs:
        ids = torch.zeros_like(plain.token_ids[:, 1:])
        values = torch.zeros_like(ids, dtype=torch.float32)
        joined = cls(plain.token_ids, plain.logprobs, plain.ranks, values, ids, ids.clone(), values.clone())
        for raw in found:
            columns = raw.ranks.shape[1]  # another row of the batch may have asked for more
            joined.raw_logprobs[raw.rows, :columns], joined.raw_ranks[raw.rows, :columns] = raw.logprobs, raw.ranks
            joined.top_ids[raw.rows, :columns], joined.top_logprobs[raw.rows, :columns] = raw.top_ids, raw.top_logprobs
        return joined

    def spread(self, rows: Tensor, token_ids: Tensor) -> BeamLogprobs:
        plain = LogprobsTensors.spread(self, rows, token_ids)
        raw = RawCandidates(rows, self.raw_logprobs, self.raw_ranks, self.top_ids, self.top_logprobs)
        return BeamLogprobs.join(plain, [raw])
