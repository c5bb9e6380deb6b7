"""Logits processors that are named when an engine starts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from folovllm import LLM, SamplingParams
from folovllm.config import EngineConfig
from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor
from tests.helpers import run_example

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


class Always(LogitsProcessor):
    """The only token that is left is 7."""

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        logits[:, 7] = 1e9
        return logits


@register_logits_processor("tests.forced")
class Forced(LogitsProcessor):
    """The only token that is left is the one that the request asks for."""

    @classmethod
    def validate(cls, params: SamplingParams) -> None:
        if not isinstance((params.extra_args or {})["tests.forced"], int):
            raise ValueError("tests.forced must be a token id")

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for logit, row in zip(logits, self.rows, strict=True):
            logit[(row.params.extra_args or {})["tests.forced"]] = 1e10
        return logits


def tokens(llm: LLM, *params: SamplingParams) -> list[list[int]]:
    outputs = llm.generate(["Once"] * len(params), list(params), use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def asks(token_id: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, extra_args={"tests.forced": token_id})


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A class in a module of the user's."""
    (tmp_path / "my_processors.py").write_text(
        "from folovllm.sample.logits_processors import LogitsProcessor\n"
        "class Five(LogitsProcessor):\n"
        "    def apply(self, logits):\n"
        "        logits[:, 5] = 1e9\n"
        "        return logits\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_processors:Five"
    sys.modules.pop("my_processors", None)


def test_a_class_is_for_every_request_of_its_engine_and_a_registered_one_for_those_that_ask() -> None:
    llm, other = LLM(dtype="float32", logits_processors=[Always, Forced]), LLM(dtype="float32")
    assert tokens(llm, GREEDY, asks(9), GREEDY) == [[7] * 4, [9] * 4, [7] * 4]
    (plain,) = tokens(other, GREEDY)
    assert plain != [7] * 4
    with pytest.raises(ValueError, match="^tests.forced must be a token id"):
        tokens(llm, asks("a"))
    again = LLM(dtype="float32", logits_processors=[f"{__name__}:Always"])
    assert tokens(again, GREEDY) == [[7] * 4]


def test_a_class_is_named_by_its_module(named: str) -> None:
    assert tokens(LLM(dtype="float32", logits_processors=[named]), GREEDY) == [[5] * 4]


def test_ranks_need_not_know_it() -> None:
    """Of a module that only this process can import."""
    unknown = type("Unknown", (Always,), {"__module__": "__main__", "__qualname__": "Unknown"})
    llm = LLM(dtype="float32", device="cpu", logits_processors=[unknown], tensor_parallel_size=2)
    assert tokens(llm, GREEDY) == [[7] * 4]


def test_one_that_fails_ends_its_requests_and_the_engine_goes_on() -> None:
    class Fails(LogitsProcessor):
        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            if any(row.params.seed == 13 for row in self.rows):
                raise RuntimeError("unlucky")
            return logits

    llm = LLM(dtype="float32", logits_processors=[Fails])
    with pytest.raises(RuntimeError, match="unlucky"):
        tokens(llm, SamplingParams(seed=13))
    assert tokens(llm, GREEDY) == tokens(LLM(dtype="float32"), GREEDY)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["no_such_module:A"], "be classes that can be imported, got 'no_such_module:A'; No module named"),
        (
            ["json:NoSuch"],
            "be classes that can be imported, got 'json:NoSuch'; module 'json' has no attribute 'NoSuch'",
        ),
        (["json:JSONDecoder"], "be subclasses of folovllm.sample.logits_processors.LogitsProcessor, got 'json:JSON"),
        ([dict], "be subclasses of folovllm.sample.logits_processors.LogitsProcessor, got <class 'dict'>"),
    ],
)
def test_what_is_none_is_refused_before_a_model_is_loaded(
    given: list[Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("folovllm.engine.llm_engine.load_hf_config", None)
    with pytest.raises(ValueError) as caught:
        LLM(logits_processors=given)
    assert str(caught.value).startswith(f"logits_processors must {said}")


@pytest.mark.parametrize("given", ["a:B", ["B"], [1]])
def test_it_is_a_list_of_classes_or_of_their_names(given: Any) -> None:
    with pytest.raises(ValueError, match="^logits_processors must be a list of classes, or of 'module:Class', got"):
        EngineConfig.from_kwargs(logits_processors=given)


def test_the_example_runs() -> None:
    """One token in two is the favoured one: none follows itself."""
    plain, asked = run_example("m11_logits_processor.py").splitlines()
    assert (plain.count(" the "), asked.count(" the ")) == (0, 4)
