"""SamplingParams: everything a request may ask about how its tokens are chosen, and when to stop.

Plain data, checked when it is made and again when a request takes it, so that the sampler never has to. Fields may be
set in between: what follows from them is computed when read or checked. Fields and their meanings are vLLM's.

vLLM: vllm/sampling_params.py
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from enum import Enum, IntEnum
from typing import Any, Literal

from folovllm.structured_outputs import StructuredOutputsParams
from folovllm.utils.checks import (
    MAX_SEED,
    FollowingInt,
    check_bool,
    check_choice,
    check_float,
    check_int,
    check_str,
    check_token_ids,
    check_utf8,
    describe,
    did_you_mean,
    wrong,
)
from folovllm.vllm_names import unknown_keyword

# Dividing by a temperature this small would overflow the logits, and the draw would always be the argmax.
_SAMPLING_EPS = 1e-5
# Numbers: what each must be, in code and in words, and the way out.
_RANGES: dict[str, tuple[Callable[[float], bool], str, str]] = {
    "temperature": (lambda x: x >= 0, "be non-negative", "0 is greedy"),
    "top_p": (lambda x: 0 < x <= 1, "be in (0, 1]", "1 keeps every token"),
    "min_p": (lambda x: 0 <= x <= 1, "be in [0, 1]", "0 keeps every token"),
    "presence_penalty": (lambda x: -2 <= x <= 2, "be in [-2, 2]", "0 turns it off"),
    "frequency_penalty": (lambda x: -2 <= x <= 2, "be in [-2, 2]", "0 turns it off"),
    # Logits are divided or multiplied by it in float32, which must not overflow.
    "repetition_penalty": (lambda x: 1e-6 <= x <= 1e6, "be positive, in [1e-06, 1e+06]", "1 turns it off"),
}
# Beams are ranked by the model's own probabilities: what shapes a draw must be left alone.
_NOT_FOR_BEAMS = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "seed": None}
_FOR_BEAMS_ONLY = {"length_penalty": 1.0, "early_stopping": False}


class SamplingType(IntEnum):
    """The strategy that one request's settings amount to."""

    GREEDY = 0
    RANDOM = 1
    RANDOM_SEED = 2
    BEAM = 3


class RequestOutputKind(Enum):
    """What a stream hands out: all so far, only what is new, or only the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class SamplingParams:
    """How to choose the tokens of one request. The first lines are the help of the options, too.

    max_tokens: stop after this many new tokens
    min_tokens: do not stop before this many
    temperature: 0 is greedy, higher is more varied
    top_p: keep the smallest set of tokens whose probability reaches this
    top_k: keep this many of the likeliest tokens; -1: all
    min_p: drop tokens less likely than this times the likeliest
    seed: the same seed draws the same text
    repetition_penalty: above 1: against tokens of the prompt and the output
    presence_penalty: against tokens that occurred in the output, once each
    frequency_penalty: against tokens that occurred in the output, once per occurrence
    stop: stop at this text; may be given again (default: none)
    ignore_eos: go on after the end-of-text token

    `n` sequences come back, the best by cumulative log-probability of `best_of` that are run (default: `n`); sequence i
    draws from `seed + i`. `max_tokens` None goes on up to the model's length. `stop` strings are cut off, unless
    `include_stop_str_in_output`. `logit_bias` adds to chosen ids, `allowed_token_ids` forbids all others, `bad_words`
    are never completed.
    Reports: `logprobs` / `prompt_logprobs` likeliest tokens per position, beside the token itself; -1 is the whole
    vocabulary. `logprobs_mode` "raw" reads `logprobs` from the model's own logits, "processed" after everything above;
    `prompt_logprobs` are always raw, as nothing is drawn there.
    Text: `detokenize=False` leaves the text empty; `skip_special_tokens` hides EOS and its like. Between those that are
    shown the text has no space but the tokens' own, whatever `spaces_between_special_tokens` says.
    Own code: `extra_args` reaches custom logits processors. Outputs: `output_kind` says what AsyncLLM hands out, and
    FINAL_ONLY that no engine makes one before the last.
    Beam search: `use_beam_search=True` with `best_of` as the width, `length_penalty`, `early_stopping`.
    Form: `structured_outputs` holds the text to a JSON schema, a regular expression, a choice or a grammar.
    """

    n: int = 1
    best_of: int = None  # type: ignore[assignment]  # as many as n, where it is not given
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None  # a list once the object exists, like the next two
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: Literal["raw", "processed"] = "raw"
    detokenize: bool = True
    skip_special_tokens: bool = True
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    structured_outputs: StructuredOutputsParams | None = None
    spaces_between_special_tokens: bool = True
    # bad_words as the sampler needs them, as token ids; the engine fills them in, as it has the tokenizer.
    bad_words_token_ids: list[list[int]] = field(default_factory=list, init=False, repr=False)

    def __new__(cls, *_: Any, **given: Any) -> SamplingParams:
        for name in given:
            if name not in cls.__dataclass_fields__:
                hint = did_you_mean(name, cls.__dataclass_fields__) or "see its docstring"
                raise TypeError(unknown_keyword("SamplingParams", name) or f"unknown keyword {name!r}; {hint}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self.validate()

    @classmethod
    def from_optional(cls, **given: Any) -> SamplingParams:
        """As the class itself, but None is "not given", except for max_tokens, where it is "up to the model's length".

        A logit_bias is as OpenAI's interface has it: its keys may be text, and a bias is brought into [-100, 100].

        Raises:
            TypeError: an unknown field. ValueError: a wrong value, by name.
        """
        values = {name: value for name, value in given.items() if value is not None or name == "max_tokens"}
        if isinstance(biases := values.get("logit_bias"), dict):
            values["logit_bias"] = dict(_openai_bias(*item) for item in biases.items())
        return cls(**values)

    def validate(self) -> None:
        """Check every field, and make lists of what may be given as a list or otherwise.

        Raises:
            ValueError: a field is wrong, or there is no such field; the text begins with its name.
        """
        for name in vars(self).keys() - self.__dataclass_fields__.keys():  # it was set later, and would be ignored
            hint = did_you_mean(name, self.__dataclass_fields__)
            raise ValueError(f"{name} is not a field of SamplingParams" + (f", {hint}" if hint else ""))
        self.stop = _string_list("stop", self.stop)
        self.bad_words = _string_list("bad_words", self.bad_words)
        for name in ("stop_token_ids", "allowed_token_ids"):
            if (token_ids := getattr(self, name)) is not None:
                check_token_ids(name, token_ids, allow_empty=name == "stop_token_ids")
                setattr(self, name, list(token_ids))
        self.stop_token_ids = self.stop_token_ids or []
        self._check_flags()
        self._check_counts()
        self._check_distribution()
        self._check_vocabulary()
        self._check_beam_search()

    @property
    def is_greedy(self) -> bool:
        """True when every token is the argmax: no randomness, whatever the filters say."""
        return self.sampling_type is SamplingType.GREEDY

    @property
    def sampling_type(self) -> SamplingType:
        if self.use_beam_search:
            return SamplingType.BEAM
        if self.temperature < _SAMPLING_EPS:
            return SamplingType.GREEDY
        return SamplingType.RANDOM if self.seed is None else SamplingType.RANDOM_SEED

    @property
    def needs_logprobs(self) -> bool:
        """Whether log-probabilities are asked for, or needed to choose the best sequences; beams are chosen earlier."""
        return self.logprobs is not None or (self.best_of > self.n and not self.use_beam_search)

    def clone(self) -> SamplingParams:
        """A deep copy: lists and dicts are not shared with the original."""
        return copy.deepcopy(self)

    def _check_flags(self) -> None:
        for each in fields(self):
            if each.type == "bool":
                check_bool(each.name, getattr(self, each.name))
        check_choice("logprobs_mode", self.logprobs_mode, ("raw", "processed"))
        if not isinstance(self.output_kind, RequestOutputKind):
            raise wrong("output_kind", "be a RequestOutputKind", self.output_kind)
        if not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            raise wrong("structured_outputs", "be StructuredOutputsParams", self.structured_outputs)
        if self.stop and not self.detokenize:
            raise ValueError(
                f"stop needs text to search in, got {describe(self.stop)} with detokenize=False; "
                "use stop_token_ids, or detokenize=True"
            )

    def _check_counts(self) -> None:
        check_int("n", self.n, 1, must="be at least 1")
        if self.best_of is None or isinstance(self.best_of, FollowingInt):
            self.best_of = FollowingInt(self.n)
        check_int("best_of", self.best_of, 1, must="be at least 1")
        if self.best_of < self.n:
            raise ValueError(f"best_of ({self.best_of}) must be >= n ({self.n})")
        if self.max_tokens is not None:
            way_out = "use None to go on to the model's max_model_len"
            check_int("max_tokens", self.max_tokens, 1, must="be at least 1", way_out=way_out)
        check_int("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) must be <= max_tokens ({self.max_tokens})")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), -1, way_out="-1 is the whole vocabulary, None turns it off")

    def _check_distribution(self) -> None:
        for name, (is_right, must, way_out) in _RANGES.items():
            if not is_right(check_float(name, getattr(self, name))):
                raise wrong(name, must, getattr(self, name), way_out)
        check_int("top_k", self.top_k)
        if self.top_k == 0:  # vLLM's spelling
            self.top_k = -1
        elif self.top_k < -1:
            raise wrong("top_k", "be -1 (disabled) or at least 1", self.top_k)
        self.seed = None if self.seed == -1 else self.seed  # vLLM's spelling
        if self.seed is not None:
            check_int("seed", self.seed)
            if not 0 <= self.seed <= MAX_SEED:
                raise wrong("seed", f"be in [0, {MAX_SEED}]", self.seed, "use None for an unseeded draw")

    def _check_vocabulary(self) -> None:
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, dict):
                raise wrong("logit_bias", "be a dict of token id to bias", self.logit_bias)
            for token_id, bias in self.logit_bias.items():
                check_int("logit_bias key", token_id, 0)
                check_float(f"logit_bias[{token_id}]", bias)
            self.logit_bias = dict(self.logit_bias)
        if self.extra_args is not None and not isinstance(self.extra_args, dict):
            raise wrong("extra_args", "be a dict", self.extra_args)

    def _check_beam_search(self) -> None:
        check_float("length_penalty", self.length_penalty)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise wrong("early_stopping", "be True, False or 'never'", self.early_stopping)
        if self.use_beam_search and self.temperature not in (0, 1):
            raise wrong("temperature", "be 0 or 1 with use_beam_search=True", self.temperature)
        for name, default in (_NOT_FOR_BEAMS if self.use_beam_search else _FOR_BEAMS_ONLY).items():
            if getattr(self, name) != default:
                where = "with" if self.use_beam_search else "without"
                raise wrong(name, f"be {default} {where} use_beam_search=True", getattr(self, name))
        # n greedy sequences would be n times the same text.
        for name in ("n", "best_of"):
            if self.is_greedy and getattr(self, name) > 1:
                must = "be 1 when using greedy sampling (temperature 0)"
                raise wrong(name, must, getattr(self, name), "raise the temperature")


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


def _string_list(name: str, value: object) -> list[str]:
    """As a list. Blank strings are fine ("\\n\\n" is a common stop); an empty one would match everywhere."""
    strings = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(strings, (list, tuple)):
        raise wrong(name, "be a string or a list of strings", value)
    for position, text in enumerate(strings):
        called = name if isinstance(value, str) else f"{name}[{position}]"
        if not isinstance(text, str) or not text:
            check_str(called, text)
        check_utf8(called, text)
    return list(strings)


def _openai_bias(key: object, bias: Any) -> tuple[int, Any]:
    """A key may be text; a number is brought into [-100, 100]. Anything else, NaN too, stays for validate() to name."""
    try:
        token_id = int(key)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise ValueError(f"logit_bias must have token ids as keys, got {key!r}") from None
    is_number = isinstance(bias, (int, float)) and not isinstance(bias, bool) and bias == bias
    return token_id, min(100.0, max(-100.0, bias)) if is_number else bias
