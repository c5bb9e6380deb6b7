"""/v1/responses, asked by the `openai` client and by langchain: a chat's tokens in OpenAI's newer form."""

from __future__ import annotations

from typing import Any, Literal

import openai
import pytest
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import BaseModel

from tests.serve.support import Running

QUESTION = "What is prefix caching?"
ASK: dict[str, Any] = {"model": "embedded", "temperature": 0, "max_output_tokens": 40}
EVENTS = ["created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.done"]
EVENTS += ["content_part.done", "output_item.done", "completed"]


def chat(client: OpenAI, messages: list[dict[str, Any]], **more: Any) -> Any:
    return client.chat.completions.create(model="embedded", messages=messages, temperature=0, max_tokens=40, **more)  # type: ignore[call-overload]


def test_the_text_is_that_of_a_chat(client: OpenAI) -> None:
    expected = chat(client, [{"role": "user", "content": QUESTION}])
    answer = client.responses.create(**ASK, input=QUESTION, metadata={"a": "b"})
    assert answer.output_text == expected.choices[0].message.content
    assert (answer.status, answer.incomplete_details, answer.metadata) == ("completed", None, {"a": "b"})
    assert answer.usage is not None
    assert answer.usage.input_tokens == expected.usage.prompt_tokens
    assert answer.usage.output_tokens == expected.usage.completion_tokens


def test_a_conversation_goes_on_with_what_was_answered(client: OpenAI) -> None:
    first = client.responses.create(**ASK, input=QUESTION)
    asked: Any = [{"role": "user", "content": QUESTION}, *first.output, {"role": "user", "content": [
        {"type": "input_text", "text": "And"}, {"type": "input_text", "text": "why?"}]}]  # fmt: skip
    answer = client.responses.create(**ASK, instructions="Be brief.", input=asked)
    expected = chat(client, [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": first.output_text}, {"role": "user", "content": "And\nwhy?"},
    ])  # fmt: skip
    assert answer.output_text == expected.choices[0].message.content
    developer = [{"role": "developer", "content": "Be brief."}, *asked]
    assert client.responses.create(**ASK, input=developer).output_text == answer.output_text


def test_events_come_in_openai_s_order_and_add_up(client: OpenAI) -> None:
    whole = client.responses.create(**ASK, input=QUESTION)
    events = list(client.responses.create(**ASK, input=QUESTION, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert list(dict.fromkeys(kinds)) == EVENTS
    assert kinds.count("output_text.delta") > 1
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == whole.output_text
    assert last.response.usage is not None
    assert last.response.usage.output_tokens == whole.usage.output_tokens  # type: ignore[union-attr]
    ids = {getattr(event, "item_id", None) for event in events} - {None}
    assert ids == {last.response.output[0].id}
    with client.responses.stream(**ASK, input=QUESTION) as stream:
        assert stream.get_final_response().output_text == whole.output_text


def test_an_answer_that_is_cut_says_so(client: OpenAI) -> None:
    ask = {**ASK, "max_output_tokens": 2, "input": QUESTION}
    answer = client.responses.create(**ask)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert list(client.responses.create(**ask, stream=True))[-1].type == "response.incomplete"


class Pet(BaseModel):
    animal: Literal["cat", "狗"]
    is_calm: bool


def test_a_text_keeps_the_schema_that_is_asked_for(client: OpenAI) -> None:
    answer = client.responses.parse(model="embedded", input="A pet?", text_format=Pet)
    assert isinstance(answer.output_parsed, Pet)


def test_langchain_asks_it_too(server: Running) -> None:
    model = ChatOpenAI(model="embedded", base_url=f"{server.url}/v1", api_key="none", use_responses_api=True,
                       temperature=0, max_tokens=20)  # fmt: skip
    answer = model.invoke(QUESTION)
    assert answer.text
    first, *others = model.stream(QUESTION)
    for chunk in others:
        first += chunk
    assert first.text == answer.text


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_output_tokens", 0, "max_output_tokens must be greater than or equal to 1, got 0"),
        ("temperature", -1, "temperature must be non-negative"),
        ("previous_response_id", "resp_1", "previous_response_id must be null"),
        ("store", True, "store must be false or null: nothing else is supported here"),
        ("tools", [{"type": "web_search"}], "tools must be [] or null: nothing else is supported here"),
        ("input", [], "input must be a list of"),
        ("input", [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
         "input[0].content[0].type must be 'input_text' or 'output_text', got 'input_image'"),
        ("text", {"format": {"type": "json_schema", "name": "x"}}, "text.format.schema must be given"),
        ("text", {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nonsense"}}},
         "text.format cannot be kept: structured_outputs.json must be something that can be compiled"),
        ("model", "gpt-5", "model must be 'embedded'"),
    ],
)  # fmt: skip
def test_what_is_wrong_or_not_supported_is_refused_by_name(
    client: OpenAI, field: str, value: Any, message: str
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.responses.create(model="embedded", input="a", extra_body={field: value})
    assert caught.value.body["message"].startswith(message)  # type: ignore[index]
    assert caught.value.body["param"].startswith(field)  # type: ignore[index]
