"""Requests that fail in a step by themselves, because numbers of theirs are not finite. The others go on.

    a row draws          the sampler says so in the place of its token id
    a prompt is asked    log_softmax makes NaN of logits that are not finite

vLLM: v1/core/sched/scheduler.py (num_nans_in_logits), which reports them and goes on
"""

from __future__ import annotations

import math

from folovllm.request import Sequence
from folovllm.sample.drawable import NOT_FINITE, undrawable
from folovllm.worker.model_runner_output import LogprobsRow

Failures = dict[str, Exception]
"""By sequence id."""


def find_undrawable(seqs: list[Sequence], token_ids: list[int]) -> Failures:
    """Of the sequences that drew these, the ones that had nothing to draw from."""
    if min(token_ids, default=0) >= 0:
        return {}
    return {seq.seq_id: _error(seq, code) for seq, code in zip(seqs, token_ids, strict=True) if code < 0}


def find_not_finite(seqs: list[Sequence], is_bad: list[bool]) -> Failures:
    """Of the sequences that were computed, the ones that are said to be bad."""
    return {seq.seq_id: _error(seq, NOT_FINITE) for seq, bad in zip(seqs, is_bad, strict=True) if bad}


def find_nan_prompts(seqs: list[Sequence], answers: dict[str, list[LogprobsRow]]) -> Failures:
    """Of the sequences that asked for log-probabilities of their prompts, the ones that got a NaN."""
    is_bad = [any(math.isnan(row.logprobs[0]) for row in answers.get(seq.seq_id, ())) for seq in seqs]
    return find_not_finite(seqs, is_bad)


def _error(seq: Sequence, code: int) -> Exception:
    return undrawable(code, seq.request_id, seq.sampling_params)
