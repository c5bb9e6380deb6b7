"""The results of LLM.beam_search, in vLLM's shape: a sequence's tokens and text begin with the prompt.

vLLM: entrypoints/generate/beam_search/
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from folovllm.outputs import FinishReason, Logprob, RequestOutput


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
