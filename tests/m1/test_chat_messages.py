"""Conversations that LLM.chat takes, and those that it refuses by name."""

from __future__ import annotations

from typing import Any

import pytest

from folovllm import LLM, SamplingParams
from folovllm.engine.chat_messages import chat_to_prompt
from tests.m1.byte_tokenizer import byte_tokenizer

SHORT = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_tokenizer()


def test_text_parts_are_joined_by_newlines_as_in_vllm(tokenizer: Any) -> None:
    in_parts = chat_to_prompt(tokenizer, [{"role": "user", "content": PARTS}])
    assert in_parts == chat_to_prompt(tokenizer, [{"role": "user", "content": "one\ntwo"}])


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "messages[1]['content'] must be text, or a list of text parts, got None"),
        (7, "messages[1]['content'] must be text, or a list of text parts, got 7"),
        (
            [PARTS[0], {"type": "image_url", "image_url": {"url": "x"}}],
            "messages[1]['content'][1] must be {'type': 'text', 'text': ...}, got a part of type 'image_url': the "
            "models here read text alone",
        ),
        (
            ["one"],
            "messages[1]['content'][0] must be {'type': 'text', 'text': ...}, got 'one': the models here read text "
            "alone",
        ),
        (
            "caf\udce9",
            "messages[1]['content'] must be text that UTF-8 can hold, got '\\udce9' at place 3 of 'caf\\udce9'",
        ),
    ],
)
def test_other_content_is_refused_by_name(tokenizer: Any, content: Any, text: str) -> None:
    with pytest.raises(ValueError) as refused:
        chat_to_prompt(tokenizer, [{"role": "user", "content": "a"}, {"role": "user", "content": content}])
    assert str(refused.value) == text


def test_a_role_that_is_no_text_is_refused(tokenizer: Any) -> None:
    with pytest.raises(ValueError, match=r"^messages\[0\]\['role'\] must be text, got None$"):
        chat_to_prompt(tokenizer, [{"role": None, "content": "a"}])


def test_a_template_that_takes_no_system_message(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}x"
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    monkeypatch.setattr(tokenizer, "chat_template", template)
    monkeypatch.setattr(tokenizer, "name_or_path", "a/model")
    with pytest.raises(ValueError) as refused:
        chat_to_prompt(tokenizer, messages)
    assert str(refused.value) == (
        "messages must suit the chat template of a/model, got the roles ['system', 'user']: System role not supported"
    )
    assert chat_to_prompt(tokenizer, messages[1:])["prompt"] == "x"


def test_a_chat_may_end_inside_its_last_message(text_model_folder: Any) -> None:
    llm = LLM(str(text_model_folder), device="cpu")
    begun = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "I am"}]
    for asked, prompt in (
        ({}, "<bos>user: hi\nassistant: I am\nassistant: "),
        ({"add_generation_prompt": False}, "<bos>user: hi\nassistant: I am\n"),
        ({"add_generation_prompt": False, "continue_final_message": True}, "<bos>user: hi\nassistant: I am"),
    ):
        (output,) = llm.chat(begun, SHORT, use_tqdm=False, **asked)
        assert output.prompt == prompt
    way_out = "continue_final_message must be False with add_generation_prompt=True, got True; give add_generation_prom"
    with pytest.raises(ValueError, match=f"^{way_out}"):
        llm.chat(begun, SHORT, use_tqdm=False, continue_final_message=True)


def test_a_chat_may_bring_its_template_and_the_template_s_variables(text_model_folder: Any) -> None:
    llm = LLM(str(text_model_folder), device="cpu")
    template = "{% for m in messages %}<{{ m['content'] }}{{ mark }}>{% endfor %}"
    asked = {"chat_template": template, "chat_template_kwargs": {"mark": "!"}}
    (output,) = llm.chat([{"role": "user", "content": "a"}], SHORT, use_tqdm=False, **asked)
    assert output.prompt == "<a!>"
    assert output.prompt_token_ids == [*b"<a!>"]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"chat_template": "{% for %}"}, "chat_template must be a template that takes these messages: "),
        ({"chat_template": "{{ raise_exception('no') }}"}, "chat_template must be a template that takes these "),
        ({"chat_template": ""}, "chat_template must not be empty, got ''"),
        ({"add_generation_prompt": 1}, "add_generation_prompt must be True or False, got 1 (int)"),
        ({"continue_final_message": "no"}, "continue_final_message must be True or False, got 'no' (str)"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs must be a dict, got [1]"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs must not have 'tokenize', which is no "),
    ],
)
def test_what_a_template_is_not_given_is_refused_by_name(text_model_folder: Any, asked: Any, text: str) -> None:
    llm = LLM(str(text_model_folder), device="cpu")
    with pytest.raises(ValueError) as refused:
        llm.chat([{"role": "user", "content": "a"}], SHORT, use_tqdm=False, **asked)
    assert str(refused.value).startswith(text)


def test_a_template_of_one_s_own_serves_a_tokenizer_that_has_none(tokenizer: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", None)
    messages = [{"role": "user", "content": "a"}]
    with pytest.raises(ValueError, match="has none: give chat_template$"):
        chat_to_prompt(tokenizer, messages)
    assert chat_to_prompt(tokenizer, messages, chat_template="{{ messages[0].content }}")["prompt"] == "a"


def test_llm_chat_takes_parts_and_goes_on_after_a_refusal(text_model_folder: Any) -> None:
    llm = LLM(str(text_model_folder), device="cpu")
    with pytest.raises(ValueError, match=r"^messages\[0\]\['content'\] must be text"):
        llm.chat([{"role": "user", "content": None}], SHORT, use_tqdm=False)
    (output,) = llm.chat([{"role": "user", "content": PARTS}], SHORT, use_tqdm=False)
    assert output.prompt == "<bos>user: one\ntwo\nassistant: "
    with pytest.raises(ValueError, match=r"^prompt must be text that UTF-8 can hold, got '\\ud83d' at place 1"):
        llm.generate("x\ud83d", SHORT, use_tqdm=False)
    with pytest.raises(ValueError, match=r"^bad_words\[0\] must be text that UTF-8 can hold"):
        SamplingParams(bad_words=["\udce9"])
    assert not llm.engine.has_unfinished_requests()
