"""What one step of the model brought, in plain Python numbers, and which requests failed in it by themselves.

    sampling           a code in place of a token id: there was nothing to draw from (sample/draw.py)
    prompt_logprobs    NaN, which log_softmax makes of logits that are not finite

vLLM: v1/outputs.py (ModelRunnerOutput)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from folovllm.core.scheduler_output import VerifiedDraft
from folovllm.request import Sequence
from folovllm.sample.beam_logprobs import BeamLogprobs
from folovllm.sample.draw import NOT_FINITE, sampling_error
from folovllm.sample.logprobs import LogprobsTensors

Failures = dict[str, Exception]
"""By sequence id."""


@dataclass(slots=True)
class LogprobsRow:
    """Log-probabilities at one position: the chosen token first, then the top ones in falling order."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int
    """Of the chosen token among the whole vocabulary; 1 is the most likely."""

    @classmethod
    def from_tensors(cls, tensors: LogprobsTensors) -> list[LogprobsRow]:
        """One row per row of the tensors; one copy to the host for each tensor, not for each number."""
        rows = zip(tensors.token_ids.tolist(), tensors.logprobs.tolist(), tensors.ranks.tolist(), strict=True)
        return [cls(*row) for row in rows]

    def cut(self, num_top: int) -> LogprobsRow:
        """Only the `num_top` likeliest beside the chosen token: a batch's rows are as wide as its widest wish."""
        return LogprobsRow(self.token_ids[: num_top + 1], self.logprobs[: num_top + 1], self.rank)


@dataclass(slots=True)
class BeamRow(LogprobsRow):
    """token_ids[1:] are the candidates, by what they are ranked by."""

    raw: list[LogprobsRow] = field(default_factory=list)
    """For each candidate the row that is reported if a beam goes on with it."""

    def cut(self, num_top: int) -> BeamRow:
        plain = LogprobsRow.cut(self, num_top)
        return BeamRow(plain.token_ids, plain.logprobs, plain.rank, self.raw[:num_top])


def to_rows(tensors: LogprobsTensors) -> list[LogprobsRow]:
    """One row per row of the tensors, which are on the host."""
    rows = LogprobsRow.from_tensors(tensors)
    if isinstance(tensors, BeamLogprobs):
        parts = (tensors.raw_logprobs, tensors.raw_ranks, tensors.top_ids, tensors.top_logprobs)
        for index, (logprobs, ranks, top_ids, top_logprobs) in enumerate(
            zip(*(part.tolist() for part in parts), strict=True)
        ):
            if ranks[0] > 0:
                row = rows[index]
                candidates = zip(row.token_ids[1:], logprobs, ranks, strict=True)
                raw = [LogprobsRow([one, *top_ids], [value, *top_logprobs], rank) for one, value, rank in candidates]
                rows[index] = BeamRow(row.token_ids, row.logprobs, row.rank, raw)
    return rows


@dataclass(slots=True)
class ModelRunnerOutput:
    """One step; the lists are parallel to its SchedulerOutput.rows."""

    token_ids: list[int | None]
    """None where nothing was drawn, and where sampling failed."""
    logprobs: list[LogprobsRow | None]
    """For sequences that asked for logprobs, or need them to rank a request's sequences."""
    prompt_logprobs: dict[str, list[LogprobsRow]] = field(default_factory=dict)
    """By sequence id, after a prefill that asked for them: one row for each prompt token but the first."""
    failures: Failures = field(default_factory=dict)
    """What a request's own logits processor raised, and what is found below."""
    drafts: dict[str, VerifiedDraft] = field(default_factory=dict)
    """By sequence id, of those for whose draft tokens there was room."""
    pooled: dict[str, list[float]] = field(default_factory=dict)
    """By sequence id, of those whose answer is a vector, and is there."""
    later_logprobs: dict[str, list[LogprobsRow]] = field(default_factory=dict)
    """By sequence id: of VerifiedDraft.next_token_ids, where they are asked for."""


def find_sampling_errors(seqs: list[Sequence], token_ids: list[int]) -> Failures:
    """The errors of those sequences that drew a code instead of a token id: there was nothing to draw from."""
    return {seq.seq_id: _error(seq, code) for seq, code in zip(seqs, token_ids, strict=True) if code < 0}


def find_not_finite(seqs: list[Sequence], is_bad: list[bool]) -> Failures:
    """The errors of those sequences whose `is_bad` is True: their numbers are NaN or infinite."""
    return {seq.seq_id: _error(seq, NOT_FINITE) for seq, bad in zip(seqs, is_bad, strict=True) if bad}


def find_nan_prompts(seqs: list[Sequence], answers: dict[str, list[LogprobsRow]]) -> Failures:
    """The errors of those sequences that asked for log-probabilities of their prompts and got a NaN."""
    is_bad = [any(math.isnan(row.logprobs[0]) for row in answers.get(seq.seq_id, ())) for seq in seqs]
    return find_not_finite(seqs, is_bad)


def _error(seq: Sequence, code: int) -> Exception:
    return sampling_error(code, seq.request_id, seq.sampling_params)
