"""SpeculativeConfig: whether the next tokens are guessed, and by what.

vLLM: vllm/config/speculative.py
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Literal

from folovllm.utils.checks import check_choice, check_int, check_str, did_you_mean, wrong

HEADS = ("eagle", "mtp")
_METHODS = ("ngram", "ngram_table", "draft_model", *HEADS)


@dataclass
class SpeculativeConfig:
    """What proposes draft tokens, which the model then checks in one step.

    `method` "ngram" searches the last tokens in the request's text: at most `prompt_lookup_max` of them, at least
    `prompt_lookup_min`; 4 and 2 where they are not given. "ngram_table" looks them up in a table that was made of a
    corpus, and "draft_model" asks a smaller model; "eagle" asks a head that reads the model's hidden states, and "mtp"
    the one that the model's own files have. `model` is the file of the table, and the folder of a draft model or a
    head, which may be left out for the embedded model.
    At most `num_speculative_tokens` are guessed a step, and fewer where checking more would cost time.
    `rejection_sample_method` "strict" draws as without drafts and keeps a draft token that is what was drawn;
    "probabilistic" lets a draft model draw its tokens, and keeps each with a probability that leaves the
    distribution as it was; requests that are greedy or have a seed are checked as by "strict".
    """

    method: Literal["ngram", "ngram_table", "draft_model", "eagle", "mtp"]
    num_speculative_tokens: int
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    model: str | None = None
    rejection_sample_method: Literal["strict", "probabilistic"] = "strict"

    def __post_init__(self) -> None:
        check_choice("method", self.method, _METHODS)
        check_int("num_speculative_tokens", self.num_speculative_tokens, 1)
        shortest, longest = self.lookup_sizes
        check_int("prompt_lookup_min", shortest, 1)
        check_int("prompt_lookup_max", longest, shortest)
        for name in ("prompt_lookup_min", "prompt_lookup_max"):
            if self.method != "ngram" and getattr(self, name) is not None:
                raise wrong(name, f"be None with method {self.method!r}", getattr(self, name), "leave it out")
        check_choice("rejection_sample_method", self.rejection_sample_method, ("strict", "probabilistic"))
        if self.rejection_sample_method == "probabilistic" and self.method != "draft_model":
            raise ValueError(
                f"rejection_sample_method must be 'strict' with method {self.method!r}, which has no probabilities, "
                f"got 'probabilistic'"
            )
        if self.model is not None:
            if self.method in ("ngram", "mtp"):
                raise wrong("model", f"be None with method {self.method!r}, which needs none", self.model)
            self.model = os.fspath(self.model) if isinstance(self.model, os.PathLike) else self.model
            check_str("model", self.model)

    @property
    def lookup_sizes(self) -> tuple[int, int]:
        """Fewest and most tokens that prompt lookup searches."""
        longest = 4 if self.prompt_lookup_max is None else self.prompt_lookup_max
        return 2 if self.prompt_lookup_min is None else self.prompt_lookup_min, longest

    @classmethod
    def of(cls, value: object) -> SpeculativeConfig:
        """`value`: one, or a dict of its fields."""
        if isinstance(value, dict):
            names = {f.name for f in fields(cls)}
            for name in value:
                if name not in names:
                    hint = did_you_mean(str(name), names) or "valid ones: " + ", ".join(sorted(names))
                    raise ValueError(f"speculative_config has an unknown key {name!r}; {hint}")
            for name in ("method", "num_speculative_tokens"):
                if name not in value:
                    raise ValueError(f"speculative_config must have {name!r}, got {value!r}")
                if name == "method":  # before a number is asked for
                    check_choice("method", value["method"], _METHODS)
            return cls(**value)
        if not isinstance(value, cls):
            raise wrong("speculative_config", "be a dict or a SpeculativeConfig", value)
        return value
