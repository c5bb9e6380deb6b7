"""Several callers of one engine: streams, generate() and step() side by side, each with what is its own."""

from __future__ import annotations

from itertools import count

import pytest

from folovllm import LLM
from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor
from tests.m1.support import assert_empty, params, run, scripted


def test_streams_and_requests_side_by_side_lose_nothing(engine):
    engine.add_request("r", "x", scripted("hello"))
    first, second = engine.generate_stream("y", scripted("hello")), engine.generate_stream("z", scripted("hello"))
    text = next(second).outputs[0].text  # drives the engine through everybody else's steps
    text += "".join(out.outputs[0].text for out in second)
    assert text == "hello"
    assert "".join(out.outputs[0].text for out in first) == "hello"
    assert run(engine)[0]["r"].outputs[0].text == "hello"
    assert not engine.has_unfinished_requests()


def test_step_leaves_an_open_stream_its_outputs(engine):
    stream = engine.generate_stream("x", scripted("hello"))
    text = next(stream).outputs[0].text
    assert run(engine) == ({}, [])  # steps the stream's request to its end
    assert text + "".join(out.outputs[0].text for out in stream) == "hello"
    assert_empty(engine)


def test_a_request_id_is_in_use_until_its_outputs_are_fetched(engine):
    engine.add_request("r", "x", scripted("a"))
    text = "".join(out.outputs[0].text for out in engine.generate_stream("y", scripted("b")))
    with pytest.raises(ValueError, match="request_id 'r' belongs to an unfinished request"):
        engine.add_request("r", "z", scripted("c"))
    assert (text, run(engine)[0]["r"].outputs[0].text) == ("b", "a")
    engine.add_request("r", "z", scripted("c"))
    assert run(engine)[0]["r"].outputs[0].text == "c"


def test_requests_of_others_are_neither_lost_nor_taken(text_model_folder):
    llm, short = LLM(str(text_model_folder), dtype="float32", device="cpu"), params(max_tokens=4, ignore_eos=True)
    llm.engine.add_request("mine", "x", short)
    assert [out.prompt for out in llm.generate("other", short, use_tqdm=False)] == ["other"]
    outputs = [out for out in llm.engine.step() if out.finished]
    assert [out.request_id for out in outputs] == ["mine"]


@register_logits_processor("m2_explode")
class Explode(LogitsProcessor):
    def apply(self, logits):
        raise RuntimeError("boom")


def test_a_failure_reaches_the_one_who_asked_and_nobody_else(text_model_folder):
    llm = LLM(str(text_model_folder), dtype="float32", device="cpu")
    bad = params(extra_args={"m2_explode": True})
    stream = llm.engine.generate_stream("x", bad)
    llm.engine.add_request("bad", "x", bad)
    assert len(llm.generate("good", params(max_tokens=3, ignore_eos=True), use_tqdm=False)[0].outputs[0].token_ids) == 3
    with pytest.raises(RuntimeError, match="boom"):
        next(stream)
    assert llm.engine.has_unfinished_requests()
    with pytest.raises(RuntimeError, match="boom"):
        llm.engine.step()
    assert_empty(llm.engine)


def test_a_users_own_id_that_looks_like_ours_is_passed_over(engine):
    """Not refused, and not the cause of another's refusal."""
    llm = LLM.__new__(LLM)
    llm.engine, llm._request_ids = engine, count()
    for name in ("request-0", "request-2", "stream-0"):
        engine.add_request(name, "x", scripted(name))
    outputs = llm.generate(["x"] * 2, scripted("ours"), use_tqdm=False)
    assert [(output.request_id, output.outputs[0].text) for output in outputs] == [
        ("request-1", "ours"), ("request-3", "ours")
    ]  # fmt: skip
    assert {delta.request_id for delta in engine.generate_stream("x", scripted("ours"))} == {"stream-1"}
    assert {name: output.outputs[0].text for name, output in run(engine)[0].items()} == {
        name: name for name in ("request-0", "request-2", "stream-0")
    }
