"""Chat over HTTP, asked by the `openai` client: the same tokens as LLM.chat, in one piece and as a stream."""

from __future__ import annotations

from typing import Any, Literal

import httpx
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from folovllm import LLM, SamplingParams
from folovllm.serving.openai.body import CHANGES_NOTHING
from tests.serve.support import ENGINE, Running, running

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
    {"temperature": 1, "seed": 11, "max_tokens": 20, "n": 3},
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


def test_what_vllm_adds_to_an_answer(client: OpenAI, offline: LLM) -> None:
    ask: dict[str, Any] = {"model": "embedded", "messages": CONVERSATIONS[0], "temperature": 0, "max_tokens": 6}
    more = {"prompt_logprobs": 2, "return_token_ids": True, "return_tokens_as_token_ids": True}
    answer = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2, extra_body=more).model_dump()
    params = SamplingParams(temperature=0, max_tokens=6, prompt_logprobs=2)
    (output,) = offline.chat(CONVERSATIONS[0], params, use_tqdm=False)
    (choice,) = answer["choices"]
    assert answer["prompt_token_ids"] == output.prompt_token_ids
    assert choice["token_ids"] == output.outputs[0].token_ids
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == [f"token_id:{i}" for i in choice["token_ids"]]
    assert output.prompt_logprobs is not None
    first, *rows = answer["prompt_logprobs"]
    assert first is None
    for row, expected in zip(rows, output.prompt_logprobs[1:], strict=True):
        assert {int(token_id): (entry["rank"], entry["decoded_token"]) for token_id, entry in row.items()} == {
            token_id: (entry.rank, entry.decoded_token) for token_id, entry in expected.items()
        }


def test_token_ids_of_a_stream_add_up(client: OpenAI) -> None:
    ask: dict[str, Any] = {"model": "embedded", "messages": CONVERSATIONS[0], "temperature": 0, "max_tokens": 12}
    more = {"return_token_ids": True}
    whole = client.chat.completions.create(**ask, extra_body=more).model_dump()
    chunks = [chunk.model_dump() for chunk in client.chat.completions.create(**ask, stream=True, extra_body=more)]
    parts = [chunk["choices"][0]["token_ids"] for chunk in chunks]
    assert [token_id for part in parts for token_id in part] == whole["choices"][0]["token_ids"]
    heads = [chunk["prompt_token_ids"] for chunk in chunks]
    assert heads == [whole["prompt_token_ids"], *[None] * (len(chunks) - 1)]


def test_a_template_of_the_clients_own_is_taken_where_it_is_trusted() -> None:
    template = "{% for m in messages %}<{{ mood }}|{{ m.content }}>{% endfor %}"
    asked = {"messages": CONVERSATIONS[0], "chat_template": template, "chat_template_kwargs": {"mood": "calm"}}
    with running(trust_chat_template=True, engine={"num_kv_blocks": 64}) as server:
        tokens = httpx.post(f"{server.url}/tokenize", json=asked).json()["tokens"]
        text = httpx.post(f"{server.url}/detokenize", json={"tokens": tokens}).json()["prompt"]
        assert text == "<calm|What is prefix caching?>"
        ask = {**asked, "max_tokens": 2, "return_token_ids": True}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=ask).json()
        assert answer["prompt_token_ids"] == tokens
        broken = httpx.post(f"{server.url}/v1/chat/completions", json={**asked, "chat_template": "{% if %}"})
        assert (broken.status_code, broken.json()["error"]["param"]) == (400, "chat_template")


def test_special_tokens_are_added_where_it_is_asked_for(client: OpenAI, server: Running) -> None:
    """The embedded tokenizer has none of its own; one that puts a token in front shows that the field arrives."""
    serving = server.app.state.serving
    real = serving.tokenizer

    class WithBos:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def __call__(self, text: str, *, add_special_tokens: bool = True) -> Any:
            return {"input_ids": [1] * add_special_tokens + real(text, add_special_tokens=False)["input_ids"]}

    ask: dict[str, Any] = {"model": "embedded", "max_tokens": 1}
    prompt = {"prompt": "a"}
    serving.tokenizer = WithBos()
    try:
        counts = [
            client.completions.create(**ask, **prompt, extra_body={"add_special_tokens": wanted}).usage.prompt_tokens
            for wanted in (True, False)
        ] + [
            client.chat.completions.create(
                **ask, messages=CONVERSATIONS[0], extra_body={"add_special_tokens": wanted}
            ).usage.prompt_tokens
            for wanted in (True, False)
        ]
    finally:
        serving.tokenizer = real
    assert counts[0] == counts[1] + 1
    assert counts[2] == counts[3] + 1


def test_what_a_template_writes_is_not_added_to(client: OpenAI) -> None:
    """continue_final_message goes on inside the last message, where add_generation_prompt would begin another."""
    more = {"continue_final_message": True, "add_generation_prompt": False, "return_token_ids": True}
    begun = [*CONVERSATIONS[0], {"role": "assistant", "content": "Prefix caching keeps"}]
    answer = client.chat.completions.create(
        model="embedded", messages=begun, temperature=0, max_tokens=5, extra_body=more
    )
    whole = client.chat.completions.create(model="embedded", messages=CONVERSATIONS[0], temperature=0, max_tokens=20)
    assert whole.choices[0].message.content.startswith("Prefix caching keeps" + answer.choices[0].message.content)


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
        ("temperature", -1),
        ("top_logprobs", 3),
        ("max_completion_tokens", 0),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"99999": 1}),
        ("priority", 3),
        ("cache_salt", ""),
        ("stream_options", {"include_usage": True}),
        ("chat_template_kwargs", {"tokenize": True}),
        ("documents", [{"text": "x"}]),
        ("echo", True),
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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop": 5}, "stop must be text or a list, got 5"),
        ({"messages": None}, "messages must be a list, got null"),
        ({"echo": True}, "echo must be false, got true"),
        ({"logprobs": True, "top_logprobs": -5}, "top_logprobs must be "),
        ({"max_completion_tokens": 0}, "max_completion_tokens must be at least 1, got 0"),
        ({"temperature": "0.5"}, "temperature must be a number, got '0.5'"),
        ({"stream": "yes"}, "stream must be true or false, got 'yes'"),
        ({"response_format": {"type": "xml"}}, "response_format.type must be 'text', 'json_object' or 'json_schema'"),
        ({"messages": [{"content": "a"}]}, "messages[0].role must be given"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content must be text or a list, got 5"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_wrong_value_is_told_in_plain_words(server: Running, fields: dict[str, Any], message: str) -> None:
    refused = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": CONVERSATIONS[0], **fields})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith(message)


def test_fields_that_change_nothing_are_taken(client: OpenAI) -> None:
    ask: dict[str, Any] = {"messages": CONVERSATIONS[0], "max_tokens": 3, "temperature": 0}
    harmless = {name: values[0] if values else "anything" for name, values in CHANGES_NOTHING.items()}
    harmless |= {"use_beam_search": False, "length_penalty": 1.0, "request_id": "mine", "reasoning_effort": "low"}
    harmless |= {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "chat_template": None}
    names = list(harmless)
    halves = [{name: harmless[name] for name in each} for each in (names[::2], names[1::2])]  # a body has 64 at most
    answers = [
        client.chat.completions.create(model="embedded", messages=[], extra_body={**ask, **more})
        for more in ({}, *halves)
    ]
    assert len({answer.choices[0].message.content for answer in answers}) == 1


def test_another_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=CONVERSATIONS[0])
    assert caught.value.code == "model_not_found"
