"""The sampler: logits [B, vocab] in, one token per row out, and logprobs where they were asked for.

    masks ─▶ bias ─▶ custom ─▶ penalties ─▶ temperature ─▶ top-k ─▶ top-p ─▶ min-p ─▶ draw
    └─ edits of a few logits, float32 ──┘   └─ among the likeliest tokens, float64 ──────┘

Raw logprobs are the log-softmax of the logits as they came in; processed ones describe what the token was
drawn from.

vLLM: v1/sample/sampler.py, v1/worker/gpu/sample/sampler.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from folovllm.sample.beam_logprobs import BeamLogprobs, RawCandidates
from folovllm.sample.draw import draw_exponential_race, draw_inverse_cdf, exponentials, uniforms
from folovllm.sample.drawable import mark_undrawable
from folovllm.sample.filters import Pool, find_candidates
from folovllm.sample.gumbel import GumbelRows
from folovllm.sample.logprobs import LogprobsTensors, candidate_logprobs, gather_logprobs
from folovllm.sample.metadata import MAX_GROUP_LOGITS, RowGroup, SamplingMetadata

__all__ = ["LogprobsTensors", "Sampler", "SamplerOutput", "gather_logprobs"]


@dataclass(slots=True)
class SamplerOutput:
    """One step's tokens; `logprobs` is None when no row needs any."""

    token_ids: Tensor  # [B] int64; a row that could not be drawn from has a code of sample/drawable.py
    logprobs: LogprobsTensors | None = None


class Sampler:
    """Draws one token per row. Holds no state: that is in the metadata's rows and their generators.

    `draw`: "inverse_cdf" is faster on a CPU, "exponential_race" on a GPU; "auto" goes by the logits' device.
    """

    def __init__(self, draw: Literal["auto", "inverse_cdf", "exponential_race"] = "auto") -> None:
        self.draw = draw

    def __call__(self, logits: Tensor, metadata: SamplingMetadata, gumbel: GumbelRows | None = None) -> SamplerOutput:
        """`logits` [B, vocab] of any float type, which are not written to; row i is row i of the metadata.

        gumbel: of the same rows, which then draw in it and not in the way of self.draw.
        """
        if metadata.is_plain_greedy and gumbel is None:
            return SamplerOutput(mark_undrawable(greedy(logits), logits, logits, "greedy"))
        token_ids = torch.empty(metadata.num_rows, dtype=torch.int64, device=logits.device)
        reports: list[tuple[Tensor, LogprobsTensors]] = []
        beams: list[RawCandidates] = []
        # A request's own processor may raise. All of them run before the first draw, so that a failure leaves every
        # generator where it was and the others can be sampled as if nothing had happened.
        ahead: dict[int, Tensor] = {}
        for number, group in enumerate(metadata.groups):
            if group.is_custom:
                ahead[number] = apply_edits(select(logits, group), group)
        for number, group in enumerate(metadata.groups):
            raw = select(logits, group)
            edited = raw
            if group.edits:
                edited = ahead[number] if number in ahead else apply_edits(raw, group)
            pools: list[Pool] = []
            if gumbel is not None and group.path != "beam":
                marked, pools = gumbel.draw(raw, edited, group)
                drawn = marked.clamp(min=0)  # log-probabilities are read at it
            else:
                drawn, pools = self._draw_group(edited, group)
                marked = mark_undrawable(drawn, raw, edited, group.path)
            if len(metadata.groups) == 1:  # which is then the whole batch, in order
                token_ids = marked
            else:
                token_ids[group.rows] = marked
            if metadata.num_logprobs is not None:
                if group.path == "beam":
                    report = gather_logprobs(edited, group.num_logprobs, drawn)
                    reports.append((group.rows, report))
                    if group.raw_rows is not None and edited is not raw:
                        which = group.raw_rows
                        candidates = report.token_ids[which, 1:]
                        beams.append(RawCandidates.gather(group.rows[which], raw[which], candidates))
                else:
                    reports += _report(group, raw, edited, pools, drawn, group.num_logprobs)
        if metadata.num_logprobs is None:
            return SamplerOutput(token_ids)
        logprobs = LogprobsTensors.empty(token_ids, min(metadata.num_logprobs, logits.shape[-1]))
        for rows, report in reports:
            logprobs.put(rows, report)
        return SamplerOutput(token_ids, BeamLogprobs.join(logprobs, beams) if beams else logprobs)

    def _draw_group(self, edited: Tensor, group: RowGroup) -> tuple[Tensor, list[Pool]]:
        """Token ids [b], and what they were drawn from, where that is known."""
        if group.path == "greedy" or group.path == "beam":
            return greedy(edited), []
        pools = find_candidates(edited, group.filters, group.path, group.width)
        return self._draw(pools, group), pools

    def _draw(self, pools: list[Pool], group: RowGroup) -> Tensor:
        drawn = torch.empty_like(group.rows)
        for rows, candidates in pools:
            device = candidates.weights.device
            generators = [group.generators[row] for row in rows]
            if self.draw == "exponential_race" or (self.draw != "inverse_cdf" and device.type != "cpu"):
                noise = exponentials(candidates.weights.shape, generators, device)
                token_ids = draw_exponential_race(candidates, noise)
            else:
                token_ids = draw_inverse_cdf(candidates, uniforms(generators, device))
            if len(pools) == 1:
                return token_ids
            drawn[torch.tensor(rows, device=device)] = token_ids
        return drawn


def select(logits: Tensor, group: RowGroup) -> Tensor:
    """The group's rows of logits [b, vocab]; for beams, log-probabilities instead.

    Processors then edit a beam's log-probabilities, which is Hugging Face's order: the probability that a mask takes
    away is not given to the other tokens.
    """
    if group.start is not None:
        rows = logits[group.start : group.start + len(group.rows)]
    else:
        rows = logits.index_select(0, group.rows)
    return rows.float().log_softmax(dim=-1) if group.path == "beam" else rows


def apply_edits(logits: Tensor, group: RowGroup) -> Tensor:
    """The group's masks, biases, processors and penalties, on a float32 copy; no copy when all are idle."""
    active = [edit for edit in group.edits if not edit.processor.is_idle()]
    if not active:
        return logits
    logits = logits.to(torch.float32, copy=True)
    for edit in active:
        logits = edit.apply(logits)
    return logits


def greedy(logits: Tensor) -> Tensor:
    """The first of the largest logits of each row, [b].

    On a CPU numpy finds it, 2 to 5 times as fast: its argmax is vectorised, where torch's looks at one number after the
    other. numpy knows no bfloat16, so such rows are converted, a few at a time to stay in the caches.
    """
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    if logits.dtype != torch.float32 and len(logits) > 1 and logits.numel() > MAX_GROUP_LOGITS:
        return torch.cat([greedy(part) for part in logits.split(max(1, MAX_GROUP_LOGITS // logits.shape[-1]))])
    return torch.from_numpy(np.argmax(logits.detach().float().numpy(), axis=-1))


def _report(
    group: RowGroup, raw: Tensor, edited: Tensor, pools: list[Pool], drawn: Tensor, k: int
) -> list[tuple[Tensor, LogprobsTensors]]:
    """Logprobs of the group's rows that asked, with those rows' places in the batch."""
    reports = []
    if (rows := group.raw_rows) is not None:
        logprobs = raw[rows].float().log_softmax(dim=-1)
        reports.append((group.rows[rows], gather_logprobs(logprobs, k, drawn[rows])))
    if (rows := group.processed_rows) is not None:
        if group.path == "greedy":  # nothing is drawn: report the distribution that the argmax was taken from
            logprobs = edited[rows].float().log_softmax(dim=-1)
        else:
            logprobs = _drawn_from(pools, edited)[rows]
        reports.append((group.rows[rows], gather_logprobs(logprobs, k, drawn[rows])))
    return reports


def _drawn_from(pools: list[Pool], edited: Tensor) -> Tensor:
    """log of the distribution that each row was drawn from, [b, vocab]."""
    if len(pools) == 1:
        return candidate_logprobs(pools[0][1], edited.shape[-1])
    logprobs = torch.empty(edited.shape, device=edited.device)
    for members, candidates in pools:
        logprobs[members] = candidate_logprobs(candidates, edited.shape[-1])
    return logprobs
