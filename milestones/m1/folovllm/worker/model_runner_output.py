"""What one step of the model brought, in plain Python numbers. vLLM: v1/outputs.py (ModelRunnerOutput)"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(slots=True)
class ModelRunnerOutput:
    """One sequence's step."""

    token_id: int
    logprobs: LogprobsRow | None = None
    """Present when the request asked for logprobs, or needs them to rank its sequences."""
    prompt_logprobs: list[LogprobsRow] | None = None
    """After a prefill that asked for them: one row for each prompt token but the first."""
