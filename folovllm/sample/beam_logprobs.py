"""What a row of a beam reports: its likeliest tokens, and what the model itself said of them.

    edited   what beams are ranked by    candidates  7   3   9    log p  -0.3  -1.2  -4.0
    raw      what "raw" reports          the same    7   3   9    log p  -0.9  -1.8  -0.7    ranks  2  4  1

Which candidate a beam goes on with is decided later, by all beams together. So a row reports all of them. Processors
edit a beam's log-probabilities, not its logits, which is Hugging Face's order: the probability that a mask takes away
is not given to the other tokens.

vLLM: entrypoints/generate/beam_search/, whose beams read the log-probabilities of one-token requests
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from folovllm.sample.draw import mark_failed_draws
from folovllm.sample.filters import top_k
from folovllm.sample.logprobs import LogprobsTensors, gather_logprobs
from folovllm.sample.metadata import SamplingMetadata


@dataclass(slots=True)
class BeamLogprobs(LogprobsTensors):
    """Columns 1.. are the C candidates, by what they are ranked by. A row that is no beam's has rank 0 here."""

    raw_logprobs: Tensor  # [B, C] of the candidates, in their order
    raw_ranks: Tensor  # [B, C] theirs among the whole vocabulary
    top_ids: Tensor  # [B, C] the likeliest, in falling order
    top_logprobs: Tensor  # [B, C]


def report_beams(raw: Tensor, edited: Tensor, metadata: SamplingMetadata) -> tuple[Tensor, LogprobsTensors]:
    """The likeliest tokens [b], or codes of draw.py, and the report; raw, edited: log-probabilities [b, vocab]."""
    num_logprobs = metadata.group.num_logprobs
    assert num_logprobs is not None
    best = edited.argmax(dim=-1)
    report = gather_logprobs(edited, num_logprobs, best)
    if edited is raw:
        return mark_failed_draws(best, raw, raw), report
    # Masks may leave a beam no token: that ends the beam and is no error.
    token_ids = mark_failed_draws(best, raw, edited.clamp(min=torch.finfo(torch.float32).min))
    if metadata.group.logprobs_mode == "raw":
        candidates = report.token_ids[:, 1:]
        own = raw.gather(1, candidates)
        ranks = [(raw > column).sum(dim=-1) + 1 for column in own.unsqueeze(-1).unbind(1)]
        values, ids = top_k(raw, candidates.shape[1])
        parts = (report.token_ids, report.logprobs, report.ranks)
        report = BeamLogprobs(*parts, own, torch.stack(ranks, dim=1), ids, values)
    return token_ids, report


def spread_beams(plain: LogprobsTensors, beams: Sequence[tuple[Tensor | slice, BeamLogprobs]]) -> BeamLogprobs:
    """`plain`, a whole batch's report, with what the beams among its rows report besides."""
    ids = torch.zeros_like(plain.token_ids[:, 1:])
    values = torch.zeros_like(ids, dtype=torch.float32)
    spread = BeamLogprobs(plain.token_ids, plain.logprobs, plain.ranks, values, ids, ids.clone(), values.clone())
    for rows, beam in beams:
        columns = beam.raw_ranks.shape[1]  # another row of the batch may have asked for more
        spread.raw_logprobs[rows, :columns], spread.raw_ranks[rows, :columns] = beam.raw_logprobs, beam.raw_ranks
        spread.top_ids[rows, :columns], spread.top_logprobs[rows, :columns] = beam.top_ids, beam.top_logprobs
    return spread
