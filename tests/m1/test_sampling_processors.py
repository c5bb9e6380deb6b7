"""Masks, biases and custom processors: what each does, on whom, and in which order."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from folovllm import SamplingParams
from folovllm.sample import logits_processors
from folovllm.sample.logits_processors import (
    LogitsProcessor,
    banned_token_ids,
    register_logits_processor,
    validate_extra_args,
)
from tests.m1.sampling_reference import assert_fits, distribution, distribution_of, draw_many, make_row, sample

INF = math.inf


def processed(logits: list[float], row_params: dict, **row) -> list[float]:
    """The logits that a row is drawn from, up to a constant: 0 for the first token."""
    params = SamplingParams(logprobs=len(logits), logprobs_mode="processed", **row_params)
    found = np.log(distribution_of(torch.tensor(logits), make_row(params, **row)))
    return [round(float(x), 4) for x in found - found[0]]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, type[LogitsProcessor]]:
    registry: dict[str, type[LogitsProcessor]] = {}
    monkeypatch.setattr(logits_processors, "_REGISTRY", registry)
    return registry


def test_only_allowed_token_ids_are_drawn() -> None:
    logits = torch.tensor([5.0, 1.0, 0.5, 4.0, 0.0])
    counts = draw_many(logits, SamplingParams(allowed_token_ids=[1, 2, 4]), 20_000)
    assert_fits(counts, distribution([-INF, 1.0, 0.5, -INF, 0.0]))


def test_allowed_tokens_that_are_all_banned_stay_allowed() -> None:
    params = SamplingParams(temperature=0, allowed_token_ids=[1, 2], min_tokens=3)
    row = make_row(params, eos=[1, 2])
    assert sample(torch.tensor([[9.0, 1.0, 2.0]]), [row]).token_ids.tolist() == [2]


def test_the_beginning_of_a_bad_word_in_the_prompt_does_not_count() -> None:
    row = make_row(SamplingParams(), prompt=[1, 2], bad_words_token_ids=[[1, 2, 3]])
    assert banned_token_ids(row) == set()


def test_a_greedy_sequence_walks_around_its_bad_words() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0]])
    row = make_row(SamplingParams(temperature=0), bad_words_token_ids=[[0, 0], [0, 1, 0]])
    for _ in range(5):
        row.output_token_ids.append(int(sample(logits, [row]).token_ids))
    assert row.output_token_ids == [0, 1, 1, 0, 1]


def test_min_tokens_bans_eos_and_stop_token_ids_until_reached() -> None:
    logits = torch.tensor([[1.0, 9.0, 8.0, 2.0]])
    row = make_row(SamplingParams(temperature=0, min_tokens=2, stop_token_ids=[2]), eos=[1])
    tokens = []
    for _ in range(3):
        tokens.append(int(sample(logits, [row]).token_ids))
        row.output_token_ids.append(tokens[-1])
    assert tokens == [3, 3, 1]


def test_eos_ids_that_the_model_has_no_logit_for_do_no_harm() -> None:
    row = make_row(SamplingParams(temperature=0, min_tokens=2), eos=[1, 4000])
    assert sample(torch.tensor([[1.0, 9.0, 2.0]]), [row]).token_ids.tolist() == [2]


def test_logit_bias_is_added_to_its_tokens_only() -> None:
    assert processed([0.0, 1.0, 2.0, 3.0], {"logit_bias": {1: 2.5, 3: -1.0}}) == [0.0, 3.5, 2.0, 2.0]


def test_a_bias_does_not_lift_a_mask() -> None:
    row = make_row(SamplingParams(temperature=0, allowed_token_ids=[1], logit_bias={0: 100.0}))
    assert sample(torch.tensor([[1.0, 1.0]]), [row]).token_ids.tolist() == [1]


def test_penalties_act_on_the_biased_logit_and_before_temperature() -> None:
    # Token 1: (1 + 3) / 2 = 2; token 2: -1 * 2 = -2; then both divided by 0.5.
    found = processed(
        [0.0, 1.0, -1.0], {"logit_bias": {1: 3.0}, "repetition_penalty": 2.0, "temperature": 0.5}, prompt=[1, 2]
    )
    assert found == [0.0, 4.0, -4.0]


def test_filters_act_after_penalties() -> None:
    logits = torch.tensor([3.0, 2.9, 0.0])
    row = make_row(SamplingParams(top_k=1, presence_penalty=1.0), output=[0])
    assert sample(logits.unsqueeze(0), [row]).token_ids.tolist() == [1]


def test_custom_processors_run_between_bias_and_penalties(registry: dict) -> None:
    @register_logits_processor("square")
    class Square(LogitsProcessor):
        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return logits**2

    # Token 1: ((1 + 2) squared) / 2 = 4.5
    settings = {"extra_args": {"square": True}, "logit_bias": {1: 2.0}, "repetition_penalty": 2.0}
    assert processed([0.0, 1.0], settings, prompt=[1]) == [0.0, 4.5]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_floats_of_any_width_are_taken_from_a_custom_processor(registry: dict, dtype: torch.dtype) -> None:
    @register_logits_processor("mine")
    class Mine(LogitsProcessor):
        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return (logits * 2).to(dtype)

    mine = SamplingParams(logprobs=3, logprobs_mode="processed", extra_args={"mine": 1}, repetition_penalty=2.0)
    found = sample(torch.tensor([[0.0, 1.0, -1.0]]), [make_row(mine, prompt=[1])])
    told = dict(zip(found.logprobs.token_ids[0].tolist(), found.logprobs.logprobs[0].tolist(), strict=True))
    expected = torch.tensor([0.0, 1.0, -2.0]).log_softmax(-1).tolist()  # token 1: 1 * 2 / 2
    assert [told[token] for token in range(3)] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda logits: None, "return a tensor, got NoneType"),
        (lambda logits: logits.long(), "return logits of a floating-point dtype, got torch.int64"),
        (lambda logits: logits > 0, "return logits of a floating-point dtype, got torch.bool"),
        (lambda logits: logits[:, :2], r"return logits of the shape that it was given, \[1, 3\], got \[1, 2\]"),
        (lambda logits: logits.to("meta"), "return logits on the device of those that it was given, cpu, got meta"),
    ],
)
def test_what_cannot_be_logits_is_refused_by_the_processors_name(registry: dict, change, text: str) -> None:
    @register_logits_processor("mine")
    class Mine(LogitsProcessor):
        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return change(logits)

    with pytest.raises(ValueError, match=f"^logits processor Mine must {text}$"):
        sample(torch.zeros(1, 3), [make_row(SamplingParams(extra_args={"mine": 1}))])


def test_an_unknown_extra_arg_is_refused_with_the_nearest_name(registry: dict) -> None:
    @register_logits_processor("activation")
    class Activation(LogitsProcessor):
        @classmethod
        def validate(cls, params: SamplingParams) -> None:
            if params.extra_args["activation"] != "sigmoid":
                raise ValueError("activation must be 'sigmoid'")

    validate_extra_args(SamplingParams())
    validate_extra_args(SamplingParams(extra_args={"activation": "sigmoid"}))
    with pytest.raises(ValueError, match=r"^extra_args key 'activatoin' .*did you mean 'activation'"):
        validate_extra_args(SamplingParams(extra_args={"activatoin": "sigmoid"}))
    with pytest.raises(ValueError, match="^activation must be 'sigmoid'"):
        validate_extra_args(SamplingParams(extra_args={"activation": "tanh"}))


def test_a_name_is_taken_once(registry: dict) -> None:
    @register_logits_processor("mine")
    class First(LogitsProcessor):
        pass

    with pytest.raises(ValueError, match="^name 'mine' is taken by the logits processor .*First"):

        @register_logits_processor("mine")
        class Second(LogitsProcessor):
            pass

    assert registry == {"mine": First}


def test_only_subclasses_can_be_registered(registry: dict) -> None:
    with pytest.raises(TypeError, match="must be a subclass of LogitsProcessor"):
        register_logits_processor("mine")(dict)  # type: ignore[type-var]
