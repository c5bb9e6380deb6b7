"""Outputs and their texts are made when they are fetched: however late that is, they say the same."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from folovllm import LLM, LLMEngine, RequestOutputKind, SamplingParams
from folovllm.engine.builder.defaults import config_for_llm
from folovllm.engine.detokenizer import IncrementalDetokenizer
from folovllm.engine.output_processor import RequestState, SequenceState
from folovllm.outputs import CompletionOutput, RequestOutput

PARAMS = {
    "greedy": SamplingParams(temperature=0, max_tokens=24),
    "several": SamplingParams(seed=3, n=3, max_tokens=24),
    "the best": SamplingParams(seed=4, best_of=3, n=2, max_tokens=24),
    "beams": SamplingParams(use_beam_search=True, temperature=0, best_of=3, n=2, max_tokens=12),
    "log-probabilities": SamplingParams(seed=5, logprobs=2, max_tokens=24),
    "a stop string": SamplingParams(temperature=0, stop=["e"], min_tokens=9, max_tokens=24),
    "no text": SamplingParams(temperature=0, detokenize=False, max_tokens=24),
}


class Bytes:
    """Bytes as text, as byte-level tokenizers decode them."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        return bytes(token_ids).decode(errors="replace")


@pytest.fixture(scope="module")
def engine() -> LLMEngine:
    return LLMEngine(config_for_llm(None, dtype="float32", num_kv_blocks=256, enable_prefix_caching=False))


def add_all(engine: LLMEngine, params: dict[str, SamplingParams]) -> None:
    for name, asked in params.items():
        engine.add_request(name, "Once upon a time", asked)


def finished(engine: LLMEngine, every: int) -> dict[str, list[CompletionOutput]]:
    """What all requests come to where outputs are made after so many steps."""
    found: dict[str, list[CompletionOutput]] = {}
    number = 0
    while engine.has_unfinished_requests():
        engine._step()
        number += 1
        if number % every == 0 or not engine.requests:
            for output in engine._take(set(engine._changed)):
                found[output.request_id] = output.outputs
    return found


def test_a_character_that_stays_incomplete_is_shown_once_however_often_the_text_is_asked_for() -> None:
    state = SequenceState([65], SamplingParams(), Bytes())
    state.add([66, 0xE4], None)
    assert state.shown_text() == "B"
    state.add([0xB8], "length")
    assert [state.shown_text() for _ in range(3)] == ["B\ufffd"] * 3


@pytest.mark.parametrize("at_once", [False, True])
def test_what_comes_after_a_stop_string_does_not_count(at_once: bool) -> None:
    state = SequenceState([65], SamplingParams(stop=["END"]), Bytes())
    pieces = [list(b"and the E"), list(b"ND of it")]
    for piece in [[*pieces[0], *pieces[1]]] if at_once else pieces:
        state.add(piece, None)
    assert (state.shown_text(), state.finish_reason, state.stop_reason) == ("and the ", "stop", "END")
    assert bytes(state.token_ids) == b"and the END"


def test_what_may_become_a_stop_string_is_held_back_and_a_length_says_less_than_one() -> None:
    state = SequenceState([65], SamplingParams(stop=["END"]), Bytes())
    state.add(list(b"the E"), None)
    assert state.shown_text() == "the"
    state.add(list(b"ND"), "length")
    assert (state.shown_text(), state.finish_reason) == ("the ", "stop")


def test_outputs_that_are_fetched_late_are_those_of_each_step(engine: LLMEngine) -> None:
    add_all(engine, PARAMS)
    each = finished(engine, every=1)
    assert each.keys() == PARAMS.keys()
    assert all(bool(choice.text) is (name != "no text") for name, made in each.items() for choice in made)
    for every in (7, 100):
        add_all(engine, PARAMS)
        assert finished(engine, every) == each


@pytest.mark.parametrize("whose", ["the call's", "the parameters'"])
def test_the_last_outputs_alone_are_those_of_each_step(engine: LLMEngine, whose: str) -> None:
    add_all(engine, PARAMS)
    each, last = finished(engine, every=1), RequestOutputKind.FINAL_ONLY
    for name, asked in PARAMS.items():
        if whose == "the call's":
            engine.add_request(name, "Once upon a time", asked, output_kind=last)
        else:
            engine.add_request(name, "Once upon a time", replace(asked, output_kind=last))
    made: list[RequestOutput] = []
    while engine.has_unfinished_requests():
        made += engine.step()
    assert {output.request_id: output.outputs for output in made} == each
    assert [output.finished for output in made] == [True] * len(each)


def test_generate_makes_one_output_of_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = list[str](), RequestState.output
    monkeypatch.setattr(RequestState, "output", lambda state: (made.append(state.request_id), make(state))[1])
    outputs = LLM(num_kv_blocks=64).generate(["Once"] * 3, SamplingParams(max_tokens=5, ignore_eos=True))
    assert made == [output.request_id for output in outputs]
    assert [output.metrics and output.metrics.num_output_tokens for output in outputs] == [5] * 3


def test_a_token_and_nothing_else_is_sent_as_a_number(engine: LLMEngine) -> None:
    params = {"plain": {}, "told": {"logprobs": 0}, "two": {"n": 2}}
    add_all(engine, {name: SamplingParams(max_tokens=3, ignore_eos=True, **more) for name, more in params.items()})
    messages = [engine.core.step() for _ in range(3)]
    assert [list(message.new_tokens) for message in messages] == [["plain"], ["plain"], []]
    sent = [sorted(str(output.key) for output in message.outputs) for message in messages]
    assert sent == [["told", "two", "two"]] * 2 + [["plain", "told", "two", "two"]]
    for name in params:
        engine.abort_request(name)


def test_a_token_that_ends_a_sequence_is_in_its_text_where_it_is_asked_for(engine: LLMEngine) -> None:
    add_all(engine, {"first": PARAMS["greedy"]})
    first = finished(engine, every=100)["first"][0]
    stop_id = first.token_ids[10]
    for keep in (False, True):
        params = SamplingParams(
            temperature=0, stop_token_ids=[stop_id], include_stop_str_in_output=keep, min_tokens=10, max_tokens=24
        )
        texts = []
        for every in (1, 4, 100):
            add_all(engine, {"again": params})
            texts.append(finished(engine, every)["again"][0].text)
        assert texts == [engine.tokenizer.decode(first.token_ids[: 10 + keep])] * 3  # type: ignore[union-attr]


def test_an_output_that_waits_is_gone_with_its_request(engine: LLMEngine) -> None:
    add_all(engine, {"gone": SamplingParams(max_tokens=5, ignore_eos=True)})
    engine._step()
    engine.abort_request("gone")
    assert not engine.has_unfinished_requests()
    assert engine.step() == []


@pytest.mark.parametrize("seed", range(20))
def test_many_tokens_at_once_add_what_they_add_one_by_one(seed: int) -> None:
    """Whole characters, their beginnings, their ends and bytes that begin nothing, cut anywhere."""
    rng, token_ids = random.Random(seed), list[int]()
    while len(token_ids) < 60:
        character = list(rng.choice("aé汉🔥").encode())
        cut = rng.randrange(len(character) + 1)
        token_ids += rng.choice([character, character[:cut], character[cut:], [0x80] * rng.randrange(9), [0xFF]])
    one_by_one = IncrementalDetokenizer(Bytes(), [], skip_special_tokens=True)
    at_once = IncrementalDetokenizer(Bytes(), [], skip_special_tokens=True)
    while token_ids:
        piece, token_ids = token_ids[: (size := rng.randrange(1, 20))], token_ids[size:]
        assert at_once.add(*piece) == "".join(map(one_by_one.add, piece))
    assert at_once.finish() == one_by_one.finish()
