"""SamplingParams as vLLM's clients write them: more spellings, the kind of output, and structured outputs.

A subclass, so that the engine and all that is written for the milestones' class takes it. `plain()` makes of it what
the engine computes with.

vLLM: sampling_params.py
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from folovllm import sampling_params as base
from folovllm.entrypoints.structured.params import StructuredOutputsParams
from folovllm.utils.checks import check_int, wrong

_ALL = -1  # logprobs=-1: of the whole vocabulary


class RequestOutputKind(Enum):
    """What a stream hands out: all so far, only what is new, or only the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class SamplingParams(base.SamplingParams):
    """As the milestones' SamplingParams, and besides: `top_k=0` keeps all tokens, `logprobs=-1` and
    `prompt_logprobs=-1` report the whole vocabulary, `output_kind` says what a stream of AsyncLLM hands out,
    `structured_outputs` holds the text to a form.
    """

    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    structured_outputs: StructuredOutputsParams | None = None

    def validate(self) -> None:
        if self.top_k == 0 and not isinstance(self.top_k, bool):
            self.top_k = -1
        if not isinstance(self.output_kind, RequestOutputKind):
            raise wrong("output_kind", "be a RequestOutputKind", self.output_kind)
        form = self.structured_outputs
        if form is not None and not isinstance(form, StructuredOutputsParams):
            raise wrong("structured_outputs", "be StructuredOutputsParams", form)
        super().validate()

    def _check_counts(self) -> None:
        whole = [name for name in ("logprobs", "prompt_logprobs") if _is_all(getattr(self, name))]
        for name in whole:
            setattr(self, name, None)
        try:
            super()._check_counts()
        finally:
            for name in whole:
                setattr(self, name, _ALL)

    @classmethod
    def from_optional(cls, **given: Any) -> SamplingParams:
        """As the class itself, but None is "not given", and the keys of logit_bias may be text.

        A bias is brought into [-100, 100], as OpenAI's interface has it.

        Raises:
            TypeError: an unknown field. ValueError: a wrong value, by name.
        """
        values = {name: value for name, value in given.items() if value is not None}
        if isinstance(values.get("logit_bias"), dict):
            values["logit_bias"] = {_token_id(key): _bounded(bias) for key, bias in values["logit_bias"].items()}
        if "max_tokens" in given:  # here None says something: up to the model's length
            values["max_tokens"] = given["max_tokens"]
        return cls(**values)

    def plain(self, vocab_size: int) -> base.SamplingParams:
        """What the engine computes with: the milestones' class, every number filled in."""
        self.validate()
        names = [field.name for field in fields(base.SamplingParams) if field.init]
        values = {name: getattr(self, name) for name in names}
        for name in ("logprobs", "prompt_logprobs"):
            if _is_all(values[name]):
                values[name] = vocab_size
        return base.SamplingParams(**values)


def _is_all(value: object) -> bool:
    return not isinstance(value, bool) and value == _ALL


def _token_id(key: object) -> int:
    try:
        return int(key)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        raise ValueError(f"logit_bias must have token ids as keys, got {key!r}") from None


def _bounded(bias: object) -> Any:
    if isinstance(bias, (int, float)) and not isinstance(bias, bool):
        return min(100.0, max(-100.0, bias)) if bias == bias else bias
    return bias


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

    def sampling_params(self) -> base.SamplingParams:
        """The same search as the engine runs it. Raises ValueError: a wrong value, by name."""
        return base.SamplingParams(
            n=self.beam_width,
            best_of=self.beam_width,
            use_beam_search=True,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            temperature=self.temperature,
            length_penalty=self.length_penalty,
            include_stop_str_in_output=self.include_stop_str_in_output,
            logprobs=0,
        )
