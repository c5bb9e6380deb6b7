"""A batch for the sampler: its rows in groups, each of which is sampled in one way, as M1 samples a sequence.

    rows      0 greedy    1 top_p=0.9    2 greedy    3 top_p=0.5, logprobs    4 greedy
    groups    0 2 4       1              3

A row takes only the work that it asks for, and rows that ask for the same share it. A row's group follows from its own
parameters alone, never from its neighbours': so a seeded row draws the same tokens in any batch. Groups are made on the
host and go to the device in one copy, which waits for nothing.

vLLM: v1/sample/sampler.py (which sends the whole batch one way)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from folovllm.sample.beam_logprobs import BeamLogprobs, report_beams, spread_beams
from folovllm.sample.filters import Filters
from folovllm.sample.logits_processors import is_custom
from folovllm.sample.logprobs import LogprobsTensors
from folovllm.sample.metadata import SamplingGroup, SamplingMetadata
from folovllm.sample.row import SamplingRow
from folovllm.sample.sampler import DrawingRows, Sampler, SamplerOutput
from folovllm.utils.upload import upload

HOST = torch.device("cpu")
# A CPU group holds at most this many logits (6 rows of 151,936): its temporaries then stay in memory that the
# allocator reuses. Buffers of 39 MB are mapped afresh at every use: 26 ms for a copy that otherwise takes 3.
MAX_GROUP_LOGITS = 1 << 20


@dataclass(slots=True)
class RowGroup:
    """Rows that are sampled in the same way."""

    rows: Tensor | slice  # [b] their places in the batch; a slice of it is selected without a copy
    metadata: SamplingMetadata

    def select(self, logits: Tensor) -> Tensor:
        """The group's rows of `logits` [b, vocab]; for beams, log-probabilities instead."""
        rows = logits[self.rows]
        return rows.float().log_softmax(dim=-1) if self.metadata.group.path == "beam" else rows


def group_rows(
    rows: Sequence[SamplingRow], vocab_size: int, device: torch.device, *, rows_apart: bool = False
) -> list[RowGroup]:
    """Row i goes with row i of the logits. Built when the batch's membership changes, used until it changes again.

    rows_apart: each row in a group of its own, so that no other row takes part in what it computes. exp() of a tensor
    is shared among threads without regard to rows, and a sum may be taken in another order when there are more of them.
    An argmax is exact, so rows that want no more stay together.
    """
    members: dict[SamplingGroup, list[int]] = {}
    for index, row in enumerate(rows):
        members.setdefault(SamplingGroup.of(row, vocab_size), []).append(index)
    groups = []
    for group, indices in members.items():
        size = len(indices)
        if group.path != "greedy" or group.processors or group.num_logprobs is not None:
            if rows_apart:
                size = 1
            elif device.type == "cpu":
                size = max(1, MAX_GROUP_LOGITS // vocab_size)
        for first in range(0, len(indices), size):
            part = indices[first : first + size]
            is_slice = part[-1] - part[0] == len(part) - 1
            metadata = SamplingMetadata.build([rows[index] for index in part], vocab_size, HOST)
            groups.append(RowGroup(slice(part[0], part[-1] + 1) if is_slice else torch.tensor(part), metadata))
    if device.type != "cpu":
        _send(groups, device)
    return groups


def _send(groups: list[RowGroup], device: torch.device) -> None:
    """All tensors to the device, in one copy."""
    tensors = []
    for group in groups:
        filters = group.metadata.filters
        tensors += [filters.temperature, filters.top_k, filters.top_p, filters.min_p]
        tensors += [group.rows] if isinstance(group.rows, Tensor) else []
    if not any(tensor.numel() for tensor in tensors):  # greedy rows alone
        return
    sent = iter(upload(device, *(tensor.numpy() for tensor in tensors)))
    for group in groups:
        group.metadata.filters = Filters(*(next(sent) for _ in range(4)))
        if isinstance(group.rows, Tensor):
            group.rows = next(sent)


def sample_groups(
    sampler: Sampler, logits: Tensor, groups: list[RowGroup], drawing: DrawingRows | None = None
) -> SamplerOutput:
    """One token for each row of `logits` [B, vocab]. drawing: the same rows, if they draw for themselves.

    A request's own processor may raise. All of them run before the first draw, so that a failure leaves every
    generator where it was and the others can be sampled as if nothing had happened.
    """
    token_ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    reports: list[tuple[Tensor | slice, LogprobsTensors]] = []
    ahead: dict[int, tuple[Tensor, Tensor]] = {}
    for number, group in enumerate(groups):
        if is_custom(group.metadata.group.processors):
            ahead[number] = _edit(logits, group)
    for number, group in enumerate(groups):
        raw, edited = ahead[number] if number in ahead else _edit(logits, group)
        if group.metadata.group.path == "beam":
            part = SamplerOutput(*report_beams(raw, edited, group.metadata))
        else:
            part = sampler.sample(raw, edited, group.metadata, drawing and drawing.take(group.rows))
        token_ids[group.rows] = part.token_ids
        if part.logprobs is not None:
            reports.append((group.rows, part.logprobs))
    return SamplerOutput(token_ids, spread_logprobs(token_ids, reports) if reports else None)


def _edit(logits: Tensor, group: RowGroup) -> tuple[Tensor, Tensor]:
    """The group's rows before and after their edits."""
    raw = group.select(logits)
    return raw, group.metadata.edit(raw)


def spread_logprobs(token_ids: Tensor, reports: Sequence[tuple[Tensor | slice, LogprobsTensors]]) -> LogprobsTensors:
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
