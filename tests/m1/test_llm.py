"""LLM: what people type first."""

from __future__ import annotations

import re

import pytest
from rich.progress import Progress

import folovllm
from folovllm import LLM, SamplingParams
from folovllm.sample.logits_processors import LogitsProcessor, register_logits_processor
from tests.m1.support import BOS, make_text_model

SHORT = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    folder = make_text_model(tmp_path_factory.mktemp("model"), max_position_embeddings=128)
    return LLM(str(folder), dtype="float32", device="cpu")


def test_outputs_come_in_the_order_of_the_prompts(llm):
    prompts = ["one", "two", "three"]
    outputs = llm.generate(prompts, SHORT, use_tqdm=False)
    assert [out.prompt for out in outputs] == prompts
    assert all(out.finished and len(out.outputs) == 1 for out in outputs)


def test_the_three_ways_to_write_a_prompt_are_one(llm):
    ids = llm.get_tokenizer()("hello")["input_ids"]
    prompts = ["hello", ids, {"prompt_token_ids": ids}]
    tokens = [out.outputs[0].token_ids for out in llm.generate(prompts, SHORT, use_tqdm=False)]
    assert tokens[0] == tokens[1] == tokens[2]


@pytest.mark.parametrize("prompt", ["hello", [1, 2, 3], {"prompt_token_ids": [1, 2, 3]}])
def test_one_prompt_needs_no_list(llm, prompt):
    assert len(llm.generate(prompt, SHORT, use_tqdm=False)) == 1


def test_no_prompts_no_outputs(llm):
    assert llm.generate([], SHORT) == []


def test_each_prompt_may_have_its_own_params(llm):
    lengths = [2, 5]
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in lengths]
    outputs = llm.generate(["a", "b"], params, use_tqdm=False)
    assert [len(out.outputs[0].token_ids) for out in outputs] == lengths


def test_a_list_of_params_of_another_length_is_refused(llm):
    with pytest.raises(ValueError, match="sampling_params must be one or as many as the prompts, got 1 for 2"):
        llm.generate(["a", "b"], [SHORT])


def test_one_bad_prompt_refuses_the_call_and_leaves_nothing(llm):
    with pytest.raises(ValueError, match="at least one token"):
        llm.generate(["fine", []], SHORT)
    assert not llm.engine.has_unfinished_requests()
    assert len(llm.generate("fine", SHORT, use_tqdm=False)) == 1


def test_an_interrupted_call_leaves_nothing(llm, monkeypatch):
    def interrupt(seq):
        raise KeyboardInterrupt

    monkeypatch.setattr(llm.engine.runner, "execute_model", interrupt)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], SHORT, use_tqdm=False)
    assert not llm.engine.has_unfinished_requests()


def test_the_progress_bar_shows_tokens_per_second(llm, monkeypatch):
    speeds = []
    monkeypatch.setattr(Progress, "update", lambda self, task, speed: speeds.append(speed))
    llm.generate("x", SHORT)
    assert len(speeds) == 4
    assert re.fullmatch(r"[\d.]+ tokens/s", speeds[-1])


def test_chat_has_exactly_one_bos(llm):
    output = llm.chat([{"role": "user", "content": "hi"}], SHORT, use_tqdm=False)[0]
    assert output.prompt_token_ids == [BOS, *b"user: hi\nassistant: "]
    assert output.prompt == "<bos>user: hi\nassistant: "


def test_chat_takes_several_conversations(llm):
    conversations = [[{"role": "user", "content": text}] for text in ("a", "b")]
    outputs = llm.chat(conversations, SHORT, use_tqdm=False)
    assert [out.prompt for out in outputs] == ["<bos>user: a\nassistant: ", "<bos>user: b\nassistant: "]


@pytest.mark.parametrize("messages", [[], [{"role": "user"}], ["hi"]])
def test_malformed_messages_are_refused(llm, messages):
    with pytest.raises(ValueError, match="messages must be a list of"):
        llm.chat([messages] if messages == [] else messages, SHORT)


def test_an_unknown_keyword_names_the_nearest_one(llm):
    with pytest.raises(TypeError, match="max_model_len"):
        LLM(max_model_length=5)


def test_bad_words_are_kept_out(tmp_path):
    llm = LLM(str(make_text_model(tmp_path)), dtype="float32", device="cpu")
    free = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
    said = llm.generate([5, 6], free, use_tqdm=False)[0].outputs[0].token_ids
    word = next(bytes(said[i : i + 2]) for i in range(28) if all(32 < t < 127 for t in said[i : i + 2]))
    banned = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True, bad_words=[word.decode()])
    again = llm.generate([5, 6], banned, use_tqdm=False)[0].outputs[0].token_ids
    assert list(word) not in [again[i : i + 2] for i in range(29)]


def test_the_decorator_is_a_public_name() -> None:
    assert folovllm.register_logits_processor is register_logits_processor
    assert folovllm.LogitsProcessor is LogitsProcessor
    assert {"register_logits_processor", "LogitsProcessor"} <= set(folovllm.__all__)
