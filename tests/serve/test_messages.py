"""/v1/messages, asked by the `anthropic` client: a chat's tokens in Anthropic's form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

from folovllm.serving.openai.errors import APIError
from tests.serve.support import Running, running

QUESTION = "What is prefix caching?"
USER: dict[str, Any] = {"role": "user", "content": QUESTION}
GREEDY: dict[str, Any] = {"extra_body": {"temperature": 0}}  # which the client knows no more
ASK: dict[str, Any] = {"model": "embedded", "max_tokens": 40, **GREEDY}
TOOLS: Any = [{"name": "double", "description": "Twice a number.", "input_schema": {
    "type": "object", "properties": {"number": {"type": "integer", "enum": [1, 2, 3]}}, "required": ["number"],
    "additionalProperties": False,
}}]  # fmt: skip
ONE_CALL: Any = {"type": "any", "disable_parallel_tool_use": True}


def client_of(server: Running, **options: Any) -> Anthropic:
    return Anthropic(**{"base_url": server.url, "api_key": "none", "max_retries": 0, "timeout": 600, **options})


@pytest.fixture
def asking(server: Running) -> Iterator[Anthropic]:
    with client_of(server) as made:
        yield made


def chat(client: OpenAI, messages: list[dict[str, Any]], **more: Any) -> Any:
    ask = {"model": "embedded", "temperature": 0, "max_tokens": 40, **more}
    return client.chat.completions.create(messages=messages, **ask)  # type: ignore[call-overload]


def test_the_text_and_the_counts_are_those_of_a_chat(asking: Anthropic, client: OpenAI) -> None:
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    answer = asking.messages.create(**ASK, system=system, messages=[USER], metadata={"user_id": "a"})  # type: ignore[arg-type]
    expected = chat(client, [{"role": "system", "content": "Be brief."}, USER])
    (block,) = answer.content
    assert block.text == expected.choices[0].message.content  # type: ignore[union-attr]
    assert (answer.stop_reason, answer.stop_sequence, answer.role) == ("end_turn", None, "assistant")
    used = answer.usage
    assert used.input_tokens + (used.cache_read_input_tokens or 0) == expected.usage.prompt_tokens
    assert used.output_tokens == expected.usage.completion_tokens
    counted = asking.messages.count_tokens(model="embedded", system="Be brief.", messages=[USER])  # type: ignore[list-item]
    assert counted.input_tokens == expected.usage.prompt_tokens


def test_events_come_in_anthropic_s_order_and_add_up(asking: Anthropic) -> None:
    whole = asking.messages.create(**ASK, messages=[USER])
    events: Any = list(asking.messages.create(**ASK, messages=[USER], stream=True))
    kinds = [event.type for event in events]
    between = kinds[2:-3]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(between) == {"content_block_delta"}
    assert len(between) > 1
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(event.delta.text for event in events[2:-3]) == whole.content[0].text  # type: ignore[union-attr]
    assert (events[0].message.content, events[0].message.stop_reason) == ([], None)
    assert (events[-2].delta.stop_reason, events[-2].usage.output_tokens) == ("end_turn", whole.usage.output_tokens)
    with asking.messages.stream(**ASK, messages=[USER]) as stream:
        assert stream.get_final_text() == whole.content[0].text  # type: ignore[union-attr]


def test_a_stream_ends_with_its_last_event(server: Running) -> None:
    body = {"model": "embedded", "max_tokens": 2, "stream": True, "messages": [USER]}
    lines = httpx.post(f"{server.url}/v1/messages", json=body, timeout=600).text.split("\n\n")
    assert lines[-2:] == ['event: message_stop\ndata: {"type":"message_stop"}', ""]


@pytest.mark.parametrize("choice", [ONE_CALL, {"type": "tool", "name": "double"}])
def test_a_call_is_a_block_and_its_result_goes_back(asking: Anthropic, client: OpenAI, choice: Any) -> None:
    ask = {**ASK, "max_tokens": 99, "messages": [USER], "tools": TOOLS, "tool_choice": choice}
    answer = asking.messages.create(**ask)
    (call,) = answer.content
    assert (call.type, answer.stop_reason) == ("tool_use", "tool_use")
    assert (call.name, call.input["number"] in (1, 2, 3)) == ("double", True)  # type: ignore[union-attr]
    with asking.messages.stream(**ask) as stream:
        (streamed,) = stream.get_final_message().content
    assert (streamed.name, streamed.input) == (call.name, call.input)  # type: ignore[union-attr]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "4", "is_error": True}  # type: ignore[union-attr]
    turn: Any = [USER, {"role": "assistant", "content": answer.content},
                 {"role": "user", "content": [result, {"type": "text", "text": "So?"}]}]  # fmt: skip
    again = asking.messages.create(**ASK, messages=turn, tools=TOOLS, tool_choice={"type": "none"})
    said = {"id": call.id, "type": "function", "function": {"name": "double", "arguments": json.dumps(call.input)}}  # type: ignore[union-attr]
    history = [USER, {"role": "assistant", "content": None, "tool_calls": [said]},
               {"role": "tool", "tool_call_id": call.id, "content": "Error:\n4"}, {"role": "user", "content": "So?"}]  # type: ignore[union-attr]  # fmt: skip
    assert again.content[0].text == chat(client, history).choices[0].message.content  # type: ignore[union-attr]
    counted = asking.messages.count_tokens(model="embedded", messages=turn, tools=TOOLS)
    shown = [{"type": "function", "function": {"name": "double", "description": "Twice a number.",
                                               "parameters": TOOLS[0]["input_schema"]}}]  # fmt: skip
    assert counted.input_tokens == chat(client, history, tools=shown, max_tokens=1).usage.prompt_tokens


def test_a_last_message_of_the_assistant_is_gone_on_with(asking: Anthropic) -> None:
    whole = asking.messages.create(**ASK, messages=[USER]).content[0].text  # type: ignore[union-attr]
    begun: Any = [USER, {"role": "assistant", "content": whole[:20]}]
    assert whole[:20] + asking.messages.create(**ASK, messages=begun).content[0].text == whole  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"max_tokens": 2}, ("max_tokens", None)),
        ({"stop_sequences": ["blocks"]}, ("stop_sequence", "blocks")),
        ({"max_tokens": 2, "tools": TOOLS, "tool_choice": ONE_CALL}, ("max_tokens", None)),
    ],
)
def test_an_answer_says_why_it_ended(asking: Anthropic, more: Any, reason: Any) -> None:
    ask = {**ASK, "messages": [USER], **more}
    answer = asking.messages.create(**ask)
    assert (answer.stop_reason, answer.stop_sequence) == reason
    with asking.messages.stream(**ask) as stream:
        last = stream.get_final_message()
    assert (last.stop_reason, last.stop_sequence) == reason


def test_thoughts_are_a_block_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("folovllm.serving.reasoning.after_thoughts", lambda form, *_: form)
    form: Any = {"format": {"type": "json_schema", "schema": {"const": "<think>One.</think>Two."}}}
    with running(reasoning_parser="deepseek_r1") as server, client_of(server) as client:
        ask = {**ASK, "messages": [USER], "output_config": form}
        whole = client.messages.create(**ask)
        thoughts, answer = whole.content
        assert (thoughts.thinking, answer.text) == ('"<think>One.', 'Two."')  # type: ignore[union-attr]
        events: Any = list(client.messages.create(**ask, stream=True))
        deltas = [event.delta for event in events if event.type == "content_block_delta" and event.index == 0]
        assert "".join(delta.thinking for delta in deltas[:-1]) == thoughts.thinking  # type: ignore[union-attr]
        assert deltas[-1].type == "signature_delta"
        again: Any = [USER, {"role": "assistant", "content": whole.content}, USER]
        assert client.messages.create(**ASK, messages=again).content


def test_whether_it_thinks_is_said_to_the_template() -> None:
    template = "{{ messages[0].content }}{% if enable_thinking %} think{% endif %}"
    with running(chat_template=template, unknown_fields="warn") as server, client_of(server) as client:
        counts = [
            client.messages.count_tokens(model="embedded", messages=[USER], thinking=thinking).input_tokens  # type: ignore[list-item]
            for thinking in ({"type": "disabled"}, {"type": "adaptive"}, {"type": "enabled", "budget_tokens": 1024})
        ]
        assert counts[0] < counts[1] == counts[2]


def test_the_key_comes_as_anthropic_s_clients_send_it() -> None:
    with running(api_keys=["sesame"]) as server:
        ask = {"json": {"messages": [USER]}, "timeout": 600}
        url = f"{server.url}/v1/messages/count_tokens"
        assert httpx.post(url, headers={"X-Api-Key": "sesame"}, **ask).status_code == 200  # type: ignore[arg-type]
        assert httpx.post(url, headers={"X-Api-Key": "other"}, **ask).status_code == 401  # type: ignore[arg-type]
        with client_of(server, api_key="other") as client, pytest.raises(anthropic.AuthenticationError):
            client.messages.create(**ASK, messages=[USER])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_tokens", 0, "max_tokens must be greater than or equal to 1, got 0"),
        ("temperature", -1, "temperature must be non-negative"),
        ("stop_sequences", [""], "stop_sequences[0] must not be empty"),
        ("tool_choice", {"type": "tool"}, "tool_choice.name must be given with type 'tool'"),
        ("tool_choice", {"type": "tool", "name": "x"}, "tool_choice must not ask for a call without tools"),
        ("tools", [{"type": "web_search_20250305", "name": "web_search"}], "tools[0].type must be 'custom'"),
        ("messages", [{"role": "user", "content": [{"type": "image", "source": {}}]}],
         "messages[0].content[0].type must be one of 'text', 'thinking', 'tool_use', 'tool_result', got 'image'"),
        ("messages", [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}],
         "messages[0].content[0].input must be given"),
        ("output_config", {"format": {"type": "json_schema", "schema": {"type": "nonsense"}}},
         "output_config.format cannot be kept: structured_outputs.json must be something that can be compiled"),
        ("model", "other", "model must be 'embedded'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_name_in_anthropic_s_shape(
    asking: Anthropic, field: str, value: Any, message: str
) -> None:
    with pytest.raises(anthropic.APIStatusError) as caught:
        asking.messages.create(model="embedded", max_tokens=9, messages=[USER], extra_body={field: value})  # type: ignore[list-item]
    body: Any = caught.value.body
    kind = {400: "invalid_request_error", 404: "not_found_error"}[caught.value.status_code]
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["error"]["message"].startswith(message)


def test_an_error_in_the_midst_of_a_stream_is_its_last_event(
    asking: Anthropic, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = server.app.state.serving.outputs

    async def failing(work: Any) -> Any:
        async for item in outputs(work):
            yield item
            raise APIError(503, "it has died")

    monkeypatch.setattr(server.app.state.serving, "outputs", failing)
    stream: Any = iter(asking.messages.create(**ASK, messages=[USER], stream=True))
    assert next(stream).type == "message_start"
    with pytest.raises(anthropic.APIStatusError) as caught:
        list(stream)
    assert caught.value.body == {"type": "error", "error": {"type": "overloaded_error", "message": "it has died"}}
