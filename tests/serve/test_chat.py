"""Chat over HTTP, asked by the `openai` client: the same tokens as LLM.chat, in one piece and as a stream."""

from __future__ import annotations

from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from folovllm import LLM, SamplingParams
from tests.serve.support import ENGINE, Running

Messages = list[dict[str, Any]]
CONVERSATIONS: list[Messages] = [
    [{"role": "user", "content": "What is prefix caching?"}],
    [{"role": "user", "content": "什么是前缀缓存？"}],
    [
        {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": "Tell me a story."},
    ],
]
DRAWS: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 40},
    {"temperature": 1, "seed": 5, "max_tokens": 40},
    {"temperature": 0.8, "seed": 7, "top_p": 0.9, "max_tokens": 30, "presence_penalty": 0.5, "frequency_penalty": 0.2},
]
OURS: list[dict[str, Any]] = [
    {"top_k": 20, "min_p": 0.02, "seed": 1, "repetition_penalty": 1.2, "min_tokens": 8},
    {"temperature": 0, "ignore_eos": True},
    {"temperature": 0, "stop_token_ids": [14], "max_tokens": 60},
]


@pytest.fixture(scope="module")
def offline() -> LLM:
    return LLM(**ENGINE)


def said(client: OpenAI, messages: Messages, draw: dict[str, Any], **more: Any) -> tuple[list[str], list[str], str]:
    """(the texts, the tokens of the first, why it ended)"""
    answer = client.chat.completions.create(
        model="embedded", messages=messages, logprobs=True, **{"max_tokens": 40, **draw}, **more
    )
    first = answer.choices[0]
    tokens = [entry.token for entry in first.logprobs.content]
    return [choice.message.content for choice in answer.choices], tokens, first.finish_reason


def expected(llm: LLM, messages: Messages, draw: dict[str, Any]) -> tuple[list[str], list[str], str]:
    (output,) = llm.chat(messages, SamplingParams(**{"max_tokens": 40, **draw}), use_tqdm=False)
    tokenizer, first = llm.get_tokenizer(), output.outputs[0]
    return (
        [choice.text for choice in output.outputs],
        [tokenizer.decode([t]) for t in first.token_ids],
        first.finish_reason,
    )


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("draw", DRAWS)
def test_the_tokens_are_those_of_llm_chat(
    client: OpenAI, offline: LLM, messages: Messages, draw: dict[str, Any]
) -> None:
    assert said(client, messages, draw) == expected(offline, messages, draw)


@pytest.mark.parametrize("draw", OURS)
def test_so_they_are_with_the_fields_that_openai_does_not_have(
    client: OpenAI, offline: LLM, draw: dict[str, Any]
) -> None:
    assert said(client, CONVERSATIONS[0], {}, extra_body=draw) == expected(offline, CONVERSATIONS[0], draw)


def test_n_answers_are_those_of_n_sequences(client: OpenAI, offline: LLM) -> None:
    draw = {"n": 3, "seed": 11, "temperature": 1.0, "max_tokens": 20}
    assert said(client, CONVERSATIONS[2], draw) == expected(offline, CONVERSATIONS[2], draw)


def test_a_stream_adds_up_to_the_answer(client: OpenAI) -> None:
    ask: dict[str, Any] = {"model": "embedded", "messages": CONVERSATIONS[0], "n": 2, "seed": 3, "max_tokens": 30}
    whole = client.chat.completions.create(**ask)
    texts, reasons, used = ["", ""], [None, None], None
    for chunk in client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
        used = chunk.usage or used
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert used is not None
    assert (used.prompt_tokens, used.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)


def test_the_likeliest_tokens_stand_in_order(client: OpenAI) -> None:
    ask = {"model": "embedded", "messages": CONVERSATIONS[0], "temperature": 0, "max_tokens": 4}
    answer = client.chat.completions.create(**ask, logprobs=True, top_logprobs=3)
    for entry in answer.choices[0].logprobs.content:
        values = [other.logprob for other in entry.top_logprobs]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert entry.logprob == values[0]
        assert bytes(entry.bytes).decode() == entry.token


def test_a_stop_string_cuts_and_is_named(client: OpenAI) -> None:
    ask = {"model": "embedded", "messages": CONVERSATIONS[0], "temperature": 0}
    text = client.chat.completions.create(**ask).choices[0].message.content
    stop = text[10:14]
    choice = client.chat.completions.create(**ask, stop=[stop]).choices[0]
    assert choice.message.content == text[: text.index(stop)]
    assert choice.stop_reason == stop


class Pet(BaseModel):
    name: Literal["Mimi", "豆豆"]
    age: Literal[1, 2, 3]
    is_calm: bool


def test_a_schema_comes_back_as_a_pydantic_model(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="embedded", messages=CONVERSATIONS[0], response_format=Pet, temperature=1, seed=4
    )
    assert isinstance(answer.choices[0].message.parsed, Pet)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("user", "me"),
        ("no_such_field", 1),
        ("temperature", -1),
        ("temperature", "0.5"),
        ("top_logprobs", 3),
        ("n", 0),
        ("seed", -1),
        ("max_completion_tokens", 0),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"99999": 1}),
        ("priority", 3),
        ("cache_salt", ""),
        ("stream_options", {"include_usage": True}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}),
        ("structured_outputs", {"regex": "(("}),
        ("messages", []),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ],
)
def test_what_is_wrong_or_not_supported_is_refused_by_name(client: OpenAI, field: str, value: Any) -> None:
    ask = {"messages": CONVERSATIONS[0], "max_tokens": 2}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="embedded", messages=[], extra_body={**ask, field: value})
    error = caught.value.body
    assert isinstance(error, dict)
    assert str(error["param"] or error["message"]).startswith(field.replace("completion_", ""))
    assert error["type"] == "invalid_request_error"


def test_another_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=CONVERSATIONS[0])
    assert caught.value.code == "model_not_found"


def test_the_model_is_listed(client: OpenAI, server: Running) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.max_model_len) == ("embedded", server.llm.engine.max_model_len)
    assert client.models.retrieve("embedded").id == "embedded"
