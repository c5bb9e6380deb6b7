"""A batch for the sampler: its rows in groups, each of which is sampled in one way, as M1 samples a sequence.

    rows      0 greedy    1 top_p=0.9    2 greedy    3 top_p=0.5, logprobs    4 greedy
    groups    0 2 4       1              3

A row takes only the work that it asks for, and rows that ask for the same share it. A row's group follows from its own
parameters alone, never from its neighbours': so a seeded row draws the same tokens in any batch.

vLLM: v1/sample/sampler.py (which sends the whole batch one way)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from folovllm.sample.beam_logprobs import BeamLogprobs, report_beams, spread_beams
from folovllm.sample.logprobs import LogprobsTensors
from folovllm.sample.metadata import SamplingGroup, SamplingMetadata
from folovllm.sample.row import SamplingRow
from folovllm.sample.sampler import Sampler, SamplerOutput


@dataclass(slots=True)
class RowGroup:
    """Rows that are sampled in the same way."""

    rows: Tensor  # [b] their places in the batch
    metadata: SamplingMetadata

    def select(self, logits: Tensor) -> Tensor:
        """The group's rows of `logits` [b, vocab]; for beams, log-probabilities instead."""
        rows = logits[self.rows]
        return rows.float().log_softmax(dim=-1) if self.metadata.group.path == "beam" else rows


def group_rows(rows: Sequence[SamplingRow], vocab_size: int, device: torch.device) -> list[RowGroup]:
    """Row i goes with row i of the logits. Built when the batch's membership changes, used until it changes again."""
    members: dict[SamplingGroup, list[int]] = {}
    for index, row in enumerate(rows):
        members.setdefault(SamplingGroup.of(row, vocab_size), []).append(index)
    return [
        RowGroup(
            torch.tensor(indices, device=device),
            SamplingMetadata.build([rows[index] for index in indices], vocab_size, device),
        )
        for indices in members.values()
    ]


def sample_groups(sampler: Sampler, logits: Tensor, groups: list[RowGroup]) -> SamplerOutput:
    """One token for each row of `logits` [B, vocab].

    A request's own processor may raise. All edits are made before the first draw, so that a failure leaves every
    generator where it was and the others can be sampled as if nothing had happened.
    """
    raw = [group.select(logits) for group in groups]
    edited = [group.metadata.edit(part) for group, part in zip(groups, raw, strict=True)]
    parts = [_sample(sampler, *both, group) for *both, group in zip(raw, edited, groups, strict=True)]
    token_ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    for group, part in zip(groups, parts, strict=True):
        token_ids[group.rows] = part.token_ids
    reports = [(group.rows, part.logprobs) for group, part in zip(groups, parts, strict=True) if part.logprobs]
    return SamplerOutput(token_ids, spread_logprobs(token_ids, reports) if reports else None)


def _sample(sampler: Sampler, raw: Tensor, edited: Tensor, group: RowGroup) -> SamplerOutput:
    if group.metadata.group.path == "beam":
        return SamplerOutput(*report_beams(raw, edited, group.metadata))
    return sampler.sample(raw, edited, group.metadata)


def spread_logprobs(token_ids: Tensor, reports: Sequence[tuple[Tensor, LogprobsTensors]]) -> LogprobsTensors:
    """Reports of some rows each as one report of the whole batch, which drew `token_ids`: as wide as the widest.

    Rows in no report hold their token's id, NaN and rank 0; narrower ones use their first columns.
    """
    width = max(report.token_ids.shape[1] for _, report in reports)
    ids = token_ids.unsqueeze(-1).repeat(1, width)
    spread = LogprobsTensors(ids, torch.full(ids.shape, torch.nan, device=ids.device), torch.zeros_like(token_ids))
    for rows, report in reports:
        columns = report.token_ids.shape[1]
        spread.token_ids[rows, :columns] = report.token_ids
        spread.logprobs[rows, :columns] = report.logprobs
        spread.ranks[rows] = report.ranks
    beams = [(rows, report) for rows, report in reports if isinstance(report, BeamLogprobs)]
    return spread_beams(spread, beams) if beams else spread
