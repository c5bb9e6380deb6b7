"""SamplingParams: defaults, what each field refuses and in which words, and what the settings amount to."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from dataclasses import fields
from typing import Any

import pytest

from folovllm.sampling_params import SamplingParams, SamplingType

NAN, INF = float("nan"), float("inf")

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "n must be at least 1, got 0"),
    ({"n": True}, "n must be an integer, got True (bool)"),
    ({"best_of": 0}, "best_of must be at least 1, got 0"),
    ({"best_of": 2, "n": 3}, "best_of (2) must be >= n (3)"),
    ({"presence_penalty": 2.1}, "presence_penalty must be in [-2, 2], got 2.1; 0 turns it off"),
    ({"frequency_penalty": -2.1}, "frequency_penalty must be in [-2, 2], got -2.1; 0 turns it off"),
    ({"repetition_penalty": 0}, "repetition_penalty must be positive, in [1e-06, 1e+06], got 0; 1 turns it off"),
    ({"temperature": 10**400}, "temperature must be at most 3.4e+38 in size, what float32 can hold, got 1000"),
    ({"logit_bias": {3: -1e39}}, "logit_bias[3] must be at most 3.4e+38 in size, what float32 can hold, got -1e+39"),
    ({"temperature": -0.1}, "temperature must be non-negative, got -0.1; 0 is greedy"),
    ({"temperature": NAN}, "temperature must be a finite number, got nan"),
    ({"temperature": True}, "temperature must be a number, got True (bool)"),
    ({"top_p": 0}, "top_p must be in (0, 1], got 0; 1 keeps every token"),
    ({"top_p": 1.01}, "top_p must be in (0, 1], got 1.01"),
    ({"top_k": -2}, "top_k must be -1 (disabled) or at least 1, got -2"),
    ({"min_p": -0.1}, "min_p must be in [0, 1], got -0.1; 0 keeps every token"),
    ({"seed": -2}, "seed must be in [0, 9223372036854775807], got -2; use None for an unseeded draw"),
    ({"seed": 2**63}, "seed must be in [0, 9223372036854775807], got 9223372036854775808"),
    ({"stop": ""}, "stop must not be empty, got ''"),
    ({"stop": ["a", ""]}, "stop[1] must not be empty, got ''"),
    ({"stop": 1}, "stop must be a string or a list of strings, got 1"),
    ({"stop": "x", "detokenize": False}, "stop needs text to search in, got ['x'] with detokenize=False"),
    ({"stop_token_ids": 5}, "stop_token_ids must be a list of token ids, got 5 (int)"),
    ({"stop_token_ids": [1, -1]}, "stop_token_ids[1] must be non-negative, got -1"),
    ({"bad_words": [""]}, "bad_words[0] must not be empty, got ''"),
    ({"include_stop_str_in_output": 1}, "include_stop_str_in_output must be True or False, got 1 (int)"),
    ({"ignore_eos": "no"}, "ignore_eos must be True or False, got 'no' (str)"),
    (
        {"max_tokens": 0},
        "max_tokens must be at least 1, got 0; use None to go on to the model's max_model_len",
    ),
    ({"min_tokens": -1}, "min_tokens must be non-negative, got -1"),
    ({"min_tokens": 17}, "min_tokens (17) must be <= max_tokens (16)"),
    ({"logprobs": -2}, "logprobs must be at least -1, got -2; -1 is the whole vocabulary, None turns it off"),
    ({"prompt_logprobs": -2}, "prompt_logprobs must be at least -1, got -2; -1 is the whole vocabulary"),
    ({"logprobs_mode": "Raw"}, "logprobs_mode must be one of 'raw', 'processed', got 'Raw'; did you mean"),
    ({"detokenize": None}, "detokenize must be True or False, got None (NoneType)"),
    ({"skip_special_tokens": 0}, "skip_special_tokens must be True or False, got 0 (int)"),
    ({"logit_bias": [1]}, "logit_bias must be a dict of token id to bias, got [1]"),
    ({"logit_bias": {"1": 2.0}}, "logit_bias key must be an integer, got '1' (str)"),
    ({"logit_bias": {7: NAN}}, "logit_bias[7] must be a finite number, got nan"),
    ({"allowed_token_ids": []}, "allowed_token_ids must not be empty, got []"),
    ({"allowed_token_ids": [-1]}, "allowed_token_ids[0] must be non-negative, got -1"),
    ({"extra_args": ["a"]}, "extra_args must be a dict, got ['a']"),
    ({"use_beam_search": 1}, "use_beam_search must be True or False, got 1 (int)"),
    ({"length_penalty": NAN}, "length_penalty must be a finite number, got nan"),
    ({"length_penalty": 0.5}, "length_penalty must be 1.0 without use_beam_search=True, got 0.5"),
    ({"early_stopping": "always"}, "early_stopping must be True, False or 'never', got 'always'"),
    ({"early_stopping": True}, "early_stopping must be False without use_beam_search=True, got True"),
]  # fmt: skip

BEAMS_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 0.7}, "temperature must be 0 or 1 with use_beam_search=True, got 0.7"),
    ({"top_p": 0.9}, "top_p must be 1.0 with use_beam_search=True, got 0.9"),
    ({"top_k": 5}, "top_k must be -1 with use_beam_search=True, got 5"),
    ({"min_p": 0.1}, "min_p must be 0.0 with use_beam_search=True, got 0.1"),
    ({"seed": 1}, "seed must be None with use_beam_search=True, got 1"),
]

# Fields that come later, with tests of their own.
LATER = {"output_kind", "structured_outputs", "spaces_between_special_tokens"}


@pytest.mark.parametrize(("kwargs", "message"), REFUSED, ids=[str(k) for k, _ in REFUSED])
def test_wrong_value_is_refused_in_these_words(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        SamplingParams(**kwargs)
    assert str(caught.value).startswith(message)


def test_every_field_has_a_refused_value() -> None:
    tried = {name for kwargs, _ in REFUSED for name in kwargs} | LATER
    assert [f.name for f in fields(SamplingParams) if f.init and f.name not in tried] == []


@pytest.mark.parametrize(("kwargs", "message"), BEAMS_REFUSED)
def test_beam_search_refuses_what_only_shapes_a_draw(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        SamplingParams(use_beam_search=True, best_of=4, **kwargs)
    assert str(caught.value) == message


def test_both_spellings_of_no_top_k_are_one() -> None:
    assert SamplingParams(top_k=0) == SamplingParams(top_k=-1) == SamplingParams()


def test_a_long_wrong_value_is_cut_in_the_message() -> None:
    with pytest.raises(ValueError) as caught:
        SamplingParams(extra_args=list(range(1000)))  # type: ignore[arg-type]
    assert len(str(caught.value)) < 120


def test_defaults_are_the_documented_ones() -> None:
    assert SamplingParams() == SamplingParams(
        n=1,
        best_of=1,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        min_p=0.0,
        max_tokens=16,
        logprobs_mode="raw",
        detokenize=True,
        skip_special_tokens=True,
        length_penalty=1.0,
    )
    assert SamplingParams().best_of == 1


def test_bounds_themselves_are_allowed() -> None:
    SamplingParams(presence_penalty=-2, frequency_penalty=2, top_p=1, top_k=1, min_p=0, seed=0, min_tokens=16)
    SamplingParams(min_p=1, seed=2**63 - 1, logprobs=0, prompt_logprobs=0, max_tokens=1, repetition_penalty=0.01)


def test_max_tokens_none_leaves_min_tokens_unbounded() -> None:
    assert SamplingParams(max_tokens=None, min_tokens=1000).max_tokens is None


def test_best_of_is_as_many_as_n_until_it_is_asked_for() -> None:
    params = SamplingParams(n=3)
    assert params.best_of == 3
    for name, value, best_of in (("n", 4, 4), ("best_of", 6, 6), ("n", 2, 6), ("best_of", None, 2)):
        setattr(params, name, value)
        params.validate()
        assert params.best_of == best_of


COPIES = {
    "clone": lambda params: params.clone(),
    "copy": copy.copy,
    "replace": dataclasses.replace,
    "pickle": lambda params: pickle.loads(pickle.dumps(params)),
    "asdict": lambda params: SamplingParams(
        **{name: value for name, value in dataclasses.asdict(params).items() if name != "bad_words_token_ids"}
    ),
}


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_is_equal(way: str) -> None:
    assert COPIES[way](SamplingParams(n=3)) == SamplingParams(n=3) == SamplingParams(n=3, best_of=3)
    assert COPIES[way](SamplingParams(n=3, best_of=5)).best_of == 5
    assert dataclasses.replace(COPIES[way](SamplingParams()), n=3).best_of == 3  # not given is not given
    with pytest.raises(ValueError, match=r"^best_of \(1\) must be >= n \(3\)$"):
        dataclasses.replace(COPIES[way](SamplingParams(best_of=1)), n=3)


def test_best_of_is_a_number_to_whoever_reads_it() -> None:
    params = SamplingParams(n=3)
    assert "n=3, best_of=3, " in repr(params)
    assert json.dumps(dataclasses.asdict(params)["best_of"]) == "3"
    assert params != SamplingParams(n=3, best_of=4)


@pytest.mark.parametrize(
    "name", [field.name for field in fields(SamplingParams) if field.init and field.name not in LATER]
)
def test_a_field_that_is_set_later_counts_as_if_it_had_been_given(name: str) -> None:
    """What follows from a field is never kept: whatever is read afterwards is what a new object says."""
    values = {"n": 3, "best_of": 4, "temperature": 0.0, "seed": 7, "stop": "x", "use_beam_search": True, "logprobs": 2}
    values |= {"stop_token_ids": [5], "bad_words": "y", "max_tokens": None, "logprobs_mode": "processed", "top_k": 3}
    values |= {"early_stopping": "never", "length_penalty": 0.5, "min_tokens": 5, "min_p": 0.5, "top_p": 0.5}
    values |= {"logit_bias": {1: 2.0}, "allowed_token_ids": [3], "extra_args": {"a": 1}, "prompt_logprobs": 0}
    off = ("length_penalty", "early_stopping")  # they act with beams only
    values |= {
        "include_stop_str_in_output": True,
        "ignore_eos": True,
        "detokenize": False,
        "skip_special_tokens": False,
    }
    value = values.get(name, 1.5)  # the penalties
    base = {"use_beam_search": True} if name in off else {}
    later = SamplingParams(**base)
    setattr(later, name, value)
    later.validate()
    given = SamplingParams(**base, **{name: value})
    assert later == given
    for derived in ("best_of", "sampling_type", "is_greedy", "needs_logprobs"):
        assert getattr(later, derived) == getattr(given, derived)


def test_what_is_set_later_is_checked_later() -> None:
    params = SamplingParams()
    params.temperature = -1.0
    with pytest.raises(ValueError, match="^temperature must be non-negative, got -1.0"):
        params.validate()
    params.temperature, params.temprature = 1.0, 0.5  # type: ignore[attr-defined]
    with pytest.raises(
        ValueError, match=r"^temprature is not a field of SamplingParams, did you mean 'temperature'\?$"
    ):
        params.validate()


def test_lists_are_normalised() -> None:
    params = SamplingParams(stop="\n", bad_words="no")  # type: ignore[arg-type]
    assert (params.stop, params.bad_words, params.stop_token_ids) == (["\n"], ["no"], [])
    assert SamplingParams().stop == []


def test_what_the_caller_does_to_its_lists_later_changes_nothing() -> None:
    stop, ids, bias = ["a"], [1], {1: 1.0}
    params = SamplingParams(stop=stop, stop_token_ids=ids, allowed_token_ids=ids, logit_bias=bias)
    stop.append("b")
    ids.append(2)
    bias[2] = 2.0
    assert (params.stop, params.stop_token_ids, params.allowed_token_ids) == (["a"], [1], [1])
    assert params.logit_bias == {1: 1.0}


def test_clone_is_deep() -> None:
    params = SamplingParams(stop=["a"], logit_bias={1: 1.0}, extra_args={"deep": {"list": [1]}})
    twin = params.clone()
    assert twin == params
    twin.extra_args["deep"]["list"].append(2)  # type: ignore[index]
    twin.stop.append("b")  # type: ignore[union-attr]
    assert params.extra_args == {"deep": {"list": [1]}}
    assert params.stop == ["a"]


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({}, SamplingType.RANDOM),
        ({"seed": 0}, SamplingType.RANDOM_SEED),
        ({"temperature": 0}, SamplingType.GREEDY),
        ({"temperature": 0.0, "seed": 1}, SamplingType.GREEDY),
        ({"temperature": 9e-6}, SamplingType.GREEDY),
        ({"temperature": 1e-5}, SamplingType.RANDOM),
        ({"use_beam_search": True, "best_of": 4}, SamplingType.BEAM),
        ({"use_beam_search": True, "best_of": 4, "temperature": 0}, SamplingType.BEAM),
    ],
)
def test_sampling_type(kwargs: dict[str, Any], expected: SamplingType) -> None:
    params = SamplingParams(**kwargs)
    assert params.sampling_type is expected
    assert params.is_greedy is (expected is SamplingType.GREEDY)


def test_greedy_refuses_several_equal_sequences() -> None:
    message = r"^best_of must be 1 when using greedy sampling \(temperature 0\), got 2; raise the temperature$"
    with pytest.raises(ValueError, match=message):
        SamplingParams(temperature=0, best_of=2)
    with pytest.raises(ValueError, match="^n must be 1 when using greedy sampling"):
        SamplingParams(temperature=0, n=2)


@pytest.mark.parametrize(
    ("kwargs", "needed"),
    [({}, False), ({"logprobs": 0}, True), ({"n": 2}, False), ({"n": 1, "best_of": 2}, True)],
)
def test_logprobs_are_needed_when_asked_for_or_to_choose_the_best(kwargs: dict[str, Any], needed: bool) -> None:
    assert SamplingParams(**kwargs).needs_logprobs is needed


def test_a_seed_of_minus_one_is_none_as_for_vllm():
    assert SamplingParams(seed=-1).sampling_type is SamplingType.RANDOM
