"""Logits processors that are named when the engine starts: one for every request, one for those that ask for it.

python examples/m11_logits_processor.py
"""

from __future__ import annotations

import _tree  # noqa: F401 - folovllm is this tree's
import torch

from folovllm import LLM, SamplingParams
from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor
from folovllm.utils.checks import check_int


class NeverTwice(LogitsProcessor):
    """No token follows itself. It is registered under no name, so every request has it."""

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for logit, row in zip(logits, self.rows, strict=True):
            if row.output_token_ids:
                logit[row.output_token_ids[-1]] = -torch.inf
        return logits


@register_logits_processor("favour")
class Favour(LogitsProcessor):
    """Requests ask for it by extra_args={"favour": a token's id}."""

    @classmethod
    def validate(cls, params: SamplingParams) -> None:
        check_int("favour", (params.extra_args or {})["favour"], 0)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for logit, row in zip(logits, self.rows, strict=True):
            logit[(row.params.extra_args or {})["favour"]] += 100
        return logits


def main() -> None:
    llm = LLM(dtype="float32", logits_processors=[NeverTwice, Favour])
    (the,) = llm.get_tokenizer()(" the", add_special_tokens=False)["input_ids"]
    plain = SamplingParams(temperature=0, max_tokens=8)
    asks = SamplingParams(temperature=0, max_tokens=8, extra_args={"favour": the})
    for output in llm.generate(["Once upon a time"] * 2, [plain, asks], use_tqdm=False):
        print(repr(output.outputs[0].text))


if __name__ == "__main__":
    main()
