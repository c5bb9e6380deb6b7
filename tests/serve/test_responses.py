"""/v1/responses, asked by the `openai` client and by langchain: a chat's tokens in OpenAI's newer form."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from folovllm.serving.openai import responses
from folovllm.serving.openai.errors import APIError
from tests.serve.support import Running, running

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
    developer = {"role": "developer", "content": "Be brief."}
    assert client.responses.create(**ASK, input=[developer, *asked]).output_text == answer.output_text
    said = [chat(client, [{**developer, "role": role}, asked[0]]) for role in ("developer", "system")]
    assert said[0].usage == said[1].usage


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


TOOLS: Any = [{"type": "function", "name": "double", "strict": True, "parameters": {
    "type": "object", "properties": {"number": {"type": "integer", "enum": [1, 2, 3]}}, "required": ["number"],
    "additionalProperties": False,
}}]  # fmt: skip
CALL: dict[str, Any] = {**ASK, "max_output_tokens": 99, "tools": TOOLS, "tool_choice": "required",
                        "parallel_tool_calls": False}  # fmt: skip


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "double"}])
def test_a_call_is_an_item_and_its_events_add_up(client: OpenAI, choice: Any) -> None:
    ask = {**CALL, "tool_choice": choice, "input": "Twice two?"}
    (call,) = client.responses.create(**ask).output
    assert (call.type, call.name, call.status) == ("function_call", "double", "completed")
    assert json.loads(call.arguments)["number"] in (1, 2, 3)
    events = list(client.responses.create(**ask, stream=True))
    kinds = dict.fromkeys(event.type.removeprefix("response.") for event in events)
    assert list(kinds) == ["created", "in_progress", "output_item.added", "function_call_arguments.delta",
                           "function_call_arguments.done", "output_item.done", "completed"]  # fmt: skip
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call.arguments
    with client.responses.stream(**ask) as stream:
        (item,) = stream.get_final_response().output
        assert (item.name, item.arguments) == (call.name, call.arguments)


def test_a_conversation_goes_on_from_the_response_that_is_stored(client: OpenAI, server: Running) -> None:
    first = client.responses.create(**CALL, input="Twice two?", instructions="Call.")
    (call,) = first.output
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "4"}]
    second = client.responses.create(**ASK, tools=TOOLS, tool_choice="none", input=result,
                                     previous_response_id=first.id)  # fmt: skip
    assert second.previous_response_id == first.id
    whole: Any = [{"role": "user", "content": "Twice two?"}, call.model_dump(exclude_none=True), *result]
    assert client.responses.create(**ASK, input=whole).output_text == second.output_text
    said = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": call.call_id, "type": "function", "function": {"name": "double", "arguments": call.arguments}}
        ],
    }
    result = {"role": "tool", "tool_call_id": call.call_id, "content": "4"}
    assert second.output_text == chat(client, [whole[0], said, result]).choices[0].message.content  # no instructions
    (last,) = [event.response for event in client.responses.create(**ASK, input="a", stream=True)
               if event.type == "response.completed"]  # fmt: skip
    assert client.responses.create(**ASK, input="b", previous_response_id=last.id).status == "completed"
    unstored = client.responses.create(**ASK, input="a", store=False)
    for asking, name in ((client, unstored.id), (server.client(api_key="another"), first.id)):
        with pytest.raises(openai.NotFoundError, match="previous_response_id must be that of a stored response"):
            asking.responses.create(**ASK, input="b", previous_response_id=name)


def test_the_store_is_bounded_and_what_was_asked_for_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "MAX_STORED", 2)
    store = responses.ResponseStore()
    for name in "ab":
        store.put("key", name, b"{}", [{"content": name}])
    assert store.get("key", "a", "response_id").messages == [{"content": "a"}]
    store.put("key", "c", b"", [])
    assert store.get("key", "a", "response_id")
    with pytest.raises(APIError, match="gave way to newer ones"):
        store.get("key", "b", "response_id")
    monkeypatch.setattr(responses, "MAX_STORED_SIZE", 9)
    store.put("key", "d", b"{}", [{"content": "much"}])
    for name in "acd":
        with pytest.raises(APIError):
            store.get("key", name, "response_id")
    assert store._size == 0


def test_a_response_that_is_stored_is_read_and_deleted_by_its_key_alone(client: OpenAI, server: Running) -> None:
    whole = client.responses.create(**ASK, input=QUESTION)
    *_, last = client.responses.create(**ASK, input=QUESTION, stream=True)
    assert last.type == "response.completed"
    for made in (whole, last.response):
        assert client.responses.retrieve(made.id) == made
        with pytest.raises(openai.NotFoundError, match="response_id must be that of a stored response"):
            server.client(api_key="another").responses.delete(made.id)
        client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError) as caught:
            client.responses.retrieve(made.id)
        assert caught.value.code == "response_not_found"
    with pytest.raises(openai.BadRequestError, match="stream must be false"):
        client.responses.retrieve("resp_1", stream=True)


def test_thoughts_are_an_item_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("folovllm.serving.reasoning.after_thoughts", lambda form, *_: form)
    schema: Any = {"type": "json_schema", "name": "a", "schema": {"const": "<think>One.</think>Two."}}
    with running(reasoning_parser="deepseek_r1") as server:
        ask: Any = {**ASK, "input": "a", "text": {"format": schema}}
        whole = server.client().responses.create(**ask)
        thoughts, answer = whole.output
        assert thoughts.content[0].text == '"<think>One.'
        assert answer.content[0].text == 'Two."'
        assert whole.usage.output_tokens_details.reasoning_tokens > 1
        events = list(server.client().responses.create(**ask, stream=True))
        deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
        assert "".join(deltas) == thoughts.content[0].text
        again = server.client().responses.create(**ASK, input=[{"role": "user", "content": "a"}, *whole.output])
        assert again.status in ("completed", "incomplete")


def test_an_answer_that_is_cut_says_so(client: OpenAI) -> None:
    ask = {**ASK, "max_output_tokens": 2, "input": QUESTION}
    answer = client.responses.create(**ask)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert list(client.responses.create(**ask, stream=True))[-1].type == "response.incomplete"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_output_tokens", 0, "max_output_tokens must be greater than or equal to 1, got 0"),
        ("temperature", -1, "temperature must be non-negative"),
        ("previous_response_id", "resp_1", "previous_response_id must be that of a stored response, got 'resp_1'"),
        ("tools", [{"type": "web_search"}], "tools[0].type must be 'function', got 'web_search'"),
        ("input", [{"type": "function_call", "call_id": "a", "name": "f"}], "input[0].arguments must be given"),
        ("input", [{"type": "x"}], "input[0].type must be one of 'message', 'function_call', 'function_call_output', "),
        ("input", [], "input must be a list of"),
        ("input", [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
         "input[0].content[0].type must be 'text', 'input_text', 'output_text' or 'refusal', got 'input_image'"),
        ("text", {"format": {"type": "json_schema", "name": "x"}}, "text.format.schema must be given"),
        ("text", {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nonsense"}}},
         "text.format cannot be kept: structured_outputs.json must be something that can be compiled"),
    ],
)  # fmt: skip
def test_what_is_wrong_or_not_supported_is_refused_by_name(
    client: OpenAI, field: str, value: Any, message: str
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.responses.create(model="embedded", input="a", extra_body={field: value})
    assert caught.value.body["message"].startswith(message)  # type: ignore[index]
    assert caught.value.body["param"].startswith(field)  # type: ignore[index]
