"""What one request may ask for at most, and what a request that asks for much costs when it ends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from folovllm import LLM, EngineConfig, LLMEngine
from folovllm.engine.input_processor import check_bounds
from folovllm.request import Request, Sequence
from folovllm.sampling_params import SamplingParams
from tests.m1.support import assert_empty, params


def config(**kwargs: Any) -> EngineConfig:
    return EngineConfig.from_kwargs(model="some/model", **kwargs)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"n": 16_385}, "^n must be at most 16384, got 16385; raise max_n, or -1 for any$"),
        ({"best_of": 20_000}, "^best_of must be at most 16384, got 20000; raise max_n, or -1 for any$"),
        ({"logprobs": 21}, "^logprobs must be at most 20, got 21; raise max_logprobs, or -1 for any$"),
        ({"prompt_logprobs": 99}, "^prompt_logprobs must be at most 20, got 99; raise max_logprobs, or -1 for any$"),
    ],
)
def test_what_is_too_much_by_default(asked, text):
    with pytest.raises(ValueError, match=text):
        check_bounds(SamplingParams(**asked), config())
    check_bounds(SamplingParams(**asked), config(max_n=-1, max_logprobs=-1))


def test_at_the_bound_is_not_above_it():
    check_bounds(SamplingParams(n=16_384, logprobs=20, prompt_logprobs=20), config())
    check_bounds(SamplingParams(n=2, best_of=3, logprobs=1), config(max_n=3, max_logprobs=1))


def test_minus_1_is_the_whole_vocabulary_and_needs_the_owners_leave(text_model_folder, engine):
    everything = params(max_tokens=2, logprobs=-1, prompt_logprobs=-1)
    with pytest.raises(ValueError, match="^logprobs must be at most 20, got"):
        engine.add_request("all", "Once", everything)
    llm = LLM(str(text_model_folder), dtype="float32", device="cpu", max_logprobs=-1)
    for field in ("logprobs", "prompt_logprobs"):
        with pytest.raises(ValueError, match=f"^{field} must be at most 258, the model's vocabulary, got 259"):
            llm.generate("Once", params(**{field: 259}), use_tqdm=False)
    (output,) = llm.generate("Once", everything, use_tqdm=False)
    rows = [*(output.prompt_logprobs or [])[1:], *(output.outputs[0].logprobs or [])]
    assert {len(row) for row in rows} == {llm.engine.runner.vocab_size}
    assert [sum(math.exp(entry.logprob) for entry in row.values()) for row in rows] == pytest.approx([1] * len(rows))
    assert (everything.logprobs, everything.prompt_logprobs) == (-1, -1)


def test_n_is_asked_before_sequences_are_made(engine, monkeypatch):
    def make_seqs(request: Request) -> None:
        raise AssertionError(f"{request.sampling_params.best_of} sequences would be made")

    monkeypatch.setattr(Request, "make_seqs", make_seqs)
    with pytest.raises(ValueError, match=f"^n must be at most 16384, got {10**9}; raise max_n"):
        engine.add_request("many", "x", params(n=10**9))
    with pytest.raises(ValueError, match=f"^best_of must be at most 16384, got {10**9}; raise max_n"):
        engine.add_request("many", "x", params(best_of=10**9))
    assert_empty(engine)


class Looks(dict[str, Sequence]):
    """A request's sequences, which count how often one is looked at."""

    count = 0

    def values(self) -> Any:
        return LooksView(self)


class LooksView:
    def __init__(self, looks: Looks) -> None:
        self.looks = looks

    def _count(self, seqs: Iterator[Sequence]) -> Iterator[Sequence]:
        for seq in seqs:
            Looks.count += 1
            yield seq

    def __iter__(self) -> Iterator[Sequence]:
        return self._count(iter(dict.values(self.looks)))

    def __reversed__(self) -> Iterator[Sequence]:
        return self._count(reversed(dict.values(self.looks)))


@pytest.mark.parametrize("started", [0, 1], ids=["waiting", "running"])
def test_an_abort_looks_at_each_sequence_a_few_times(engine, started, monkeypatch):
    """At each once for each would be 1.6 million looks for 400 sequences, 160 million for 4,000."""
    engine.add_request("many", "x", params(n=400, ignore_eos=True))
    for _ in range(started):
        engine.step()
    request = engine.requests["many"]
    request.sequences = Looks(request.sequences)
    monkeypatch.setattr(Looks, "count", 0)
    engine.abort_request("many")
    assert 400 <= Looks.count <= 8 * 400
    assert all(seq.is_finished() for seq in request.get_seqs())
    assert_empty(engine)


def test_as_they_end_sequences_do_not_ask_all_that_ended_before(text_model_folder, monkeypatch):
    """At most a few looks per sequence and step: 250 that end one by one ask each other 62,500 times."""
    engine = LLMEngine(EngineConfig.from_kwargs(model=str(text_model_folder), dtype="float32", device="cpu"))
    engine.add_request("many", [7], params(n=250, max_tokens=2, seed=0, ignore_eos=True))
    request = engine.requests["many"]
    monkeypatch.setattr(engine.output_processor, "_completion", lambda *_: None, raising=False)
    engine.step()  # all that there is room for start
    request.sequences = Looks(request.sequences)
    monkeypatch.setattr(Looks, "count", 0)
    steps = 0
    while engine.has_unfinished_requests():
        engine.step()
        steps += 1
    assert len(request.sequences) == 250
    assert Looks.count / (250 * steps) < 40
