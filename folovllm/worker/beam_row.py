"""A beam's row of log-probabilities, which also knows what the model itself said. vLLM: none"""

from __future__ import annotations

from dataclasses import dataclass, field

from folovllm.sample.beam_logprobs import BeamLogprobs
from folovllm.sample.logprobs import LogprobsTensors
from folovllm.worker.model_runner_output import LogprobsRow


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
        for place, (logprobs, ranks, top_ids, top_logprobs) in enumerate(
            zip(*(part.tolist() for part in parts), strict=True)
        ):
            if ranks[0] > 0:
                row = rows[place]
                candidates = zip(row.token_ids[1:], logprobs, ranks, strict=True)
                raw = [LogprobsRow([one, *top_ids], [value, *top_logprobs], rank) for one, value, rank in candidates]
                rows[place] = BeamRow(row.token_ids, row.logprobs, row.rank, raw)
    return rows
