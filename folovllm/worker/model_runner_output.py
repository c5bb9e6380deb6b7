"""What one step of the model brought, in plain Python numbers. vLLM: v1/outputs.py (ModelRunnerOutput)"""

from __future__ import annotations

from dataclasses import dataclass, field

from folovllm.sample.logprobs import LogprobsTensors


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
class ModelRunnerOutput:
    """One step; the lists are parallel to its SchedulerOutput.rows."""

    token_ids: list[int | None]
    """None where nothing was drawn, and where sampling failed."""
    logprobs: list[LogprobsRow | None]
    """For sequences that asked for logprobs, or need them to rank a request's sequences."""
    prompt_logprobs: dict[str, list[LogprobsRow]] = field(default_factory=dict)
    """By sequence id, after a prefill that asked for them: one row for each prompt token but the first."""
    failures: dict[str, Exception] = field(default_factory=dict)
    """By sequence id: what its own logits processor raised."""
