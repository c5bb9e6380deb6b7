"""Conversations that LLM.chat takes, and those that it refuses by name."""

from __future__ import annotations

from typing import Any

import pytest

from folovllm import LLM, SamplingParams
from folovllm.engine.input_processor import chat_to_prompt
from tests.m1.support import byte_tokenizer

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
    assert chat_to_prompt(tokenizer, messages[1:])["prompt"] == "x"  # type: ignore[index, call-overload]


def test_llm_chat_takes_parts_and_goes_on_after_a_refusal(text_model_folder: Any) -> None:
    llm = LLM(str(text_model_folder), device="cpu")
    params = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
    with pytest.raises(ValueError, match=r"^messages\[0\]\['content'\] must be text"):
        llm.chat([{"role": "user", "content": None}], params, use_tqdm=False)
    (output,) = llm.chat([{"role": "user", "content": PARTS}], params, use_tqdm=False)
    assert output.prompt == "<bos>user: one\ntwo\nassistant: "
    with pytest.raises(ValueError, match=r"^prompt must be text that UTF-8 can hold, got '\\ud83d' at place 1"):
        llm.generate("x\ud83d", params, use_tqdm=False)
    with pytest.raises(ValueError, match=r"^bad_words\[0\] must be text that UTF-8 can hold"):
        SamplingParams(bad_words=["\udce9"])
    assert not llm.engine.has_unfinished_requests()
