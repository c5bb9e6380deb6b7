"""Arguments and results of LLM.beam_search, in vLLM's shape: a sequence's tokens and text begin with the prompt.

vLLM: entrypoints/generate/beam_search/, sampling_params.py (BeamSearchParams)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from folovllm.outputs import FinishReason, Logprob, RequestOutput
from folovllm.sampling_params import SamplingParams
from folovllm.utils.checks import check_int


@dataclass
class BeamSearchParams:
    """For LLM.beam_search: `beam_width` beams of up to `max_tokens` tokens."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        check_int("beam_width", self.beam_width, 1)

    def sampling_params(self) -> SamplingParams:
        """The same search as the engine runs it. Raises ValueError: a wrong value, by name."""
        same = asdict(self)
        width = same.pop("beam_width")
        return SamplingParams(n=width, best_of=width, use_beam_search=True, logprobs=0, **same)


@dataclass
class BeamSearchSequence:
    """`tokens` are the prompt's and the generated ones; `logprobs` has an entry for each generated one."""

    tokens: list[int]
    logprobs: list[dict[int, Logprob]]
    cum_logprob: float
    text: str | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None


@dataclass
class BeamSearchOutput:
    """The best sequences of one prompt, best first."""

    sequences: list[BeamSearchSequence]


def to_output(output: RequestOutput, tokenizer: Any | None) -> BeamSearchOutput:
    sequences = []
    for beam in output.outputs:
        tokens = [*output.prompt_token_ids, *beam.token_ids]
        text = None if tokenizer is None else tokenizer.decode(tokens)
        score = beam.cumulative_logprob or 0.0
        sequences.append(
            BeamSearchSequence(tokens, beam.logprobs or [], score, text, beam.finish_reason, beam.stop_reason)
        )
    return BeamSearchOutput(sequences)
