"""Drives a BeamSearch as an engine would, with any source of log-probabilities."""

from __future__ import annotations

from collections.abc import Callable

import torch

from folovllm.sample.beam_search import BeamSearch, BeamStep, CandidateRow

# The log-probabilities [vocab_size] that follow some output tokens.
Logprobs = Callable[[list[int]], torch.Tensor]


def num_candidates(search: BeamSearch) -> int:
    """How many of a row's best tokens are enough, as SamplingRow.num_reported has it."""
    return search.width + len(search.eos_token_ids)


def decode(search: BeamSearch, logprobs: Logprobs, most: int | None = None) -> list[BeamStep]:
    """What an engine does: score the live beams, hand over the best candidates of each, until it is over."""
    steps: list[BeamStep] = []
    while not search.done:
        rows: list[CandidateRow] = []
        for beam in search.live:
            row = logprobs(beam.token_ids)
            values, ids = row.topk(min(most or num_candidates(search), len(row)))
            rows.append((ids.tolist(), values.tolist()))
        steps.append(search.advance(rows))
    return steps
