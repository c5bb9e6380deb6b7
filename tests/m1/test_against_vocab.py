"""What a request may ask for depends on the model's vocabulary, too."""

from __future__ import annotations

import pytest

from folovllm import SamplingParams
from folovllm.engine.input_processor import validate_against_vocab


@pytest.mark.parametrize(
    "field, value",
    [
        ("stop_token_ids", [3, 50]),
        ("allowed_token_ids", [50]),
        ("logit_bias", {99: 1.0}),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(field: str, value: object) -> None:
    bad = 99 if field == "logit_bias" else 50
    message = rf"^{field} must hold token ids in \[0, 50\), the model's vocabulary, got {bad}$"
    with pytest.raises(ValueError, match=message):
        validate_against_vocab(SamplingParams(**{field: value}), 50)


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_more_logprobs_than_tokens_are_refused(field: str) -> None:
    validate_against_vocab(SamplingParams(**{field: 50}), 50)
    with pytest.raises(ValueError, match=f"^{field} must be at most 50, the model's vocabulary, got 51"):
        validate_against_vocab(SamplingParams(**{field: 51}), 50)


def test_ids_inside_the_vocabulary_are_accepted() -> None:
    params = SamplingParams(stop_token_ids=[0, 49], allowed_token_ids=[0, 49], logit_bias={0: 1.0, 49: -1.0})
    validate_against_vocab(params, 50)
