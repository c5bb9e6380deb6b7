"""Calls of tools over HTTP, by the clients that others wrote. The embedded model has never heard of tools: what it
answers is forced, by `tool_choice` or by a form that is written as models with tools write."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessage

from folovllm import LLM
from folovllm.outputs import CompletionOutput
from folovllm.serving.openai import streams
from folovllm.serving.openai.protocol import ChatRequest
from folovllm.serving.openai.tool_use import MessageReader, ToolUse
from folovllm.serving.reasoning import ReasoningParser
from folovllm.serving.tool_parsers.formats import HermesToolParser
from folovllm.structured_outputs import closed_schema
from tests.clients.test_tool_parsers import Counted, counted_patterns, work_of  # noqa: F401  a fixture
from tests.serve.support import ENGINE, Running, running

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": {"$ref": "#/$defs/Place"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["place", "days"],
    "additionalProperties": False,
    "$defs": {"Place": {"enum": ["Paris", "北京"]}},
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
ASK: dict[str, Any] = {
    "model": "embedded", "messages": [{"role": "user", "content": "The weather in Paris?"}], "tools": TOOLS, "seed": 1,
    "max_tokens": 200,
}  # fmt: skip
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "get_weather"}}
HERMES = r'I look\. \n<tool_call>\n\{"name": "get_weather", "arguments": \{"place": "(Paris|北京)", "days": [1-9]\}\}\n'
HERMES += r'</tool_call>\n<tool_call>\n\{"name": "now", "arguments": \{\}\}\n</tool_call>'
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}|{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>"
    "{% endfor %}|{% endfor %}"
)


@pytest.fixture(scope="module")
def hermes() -> Iterator[Running]:
    with running(tool_call_parser="hermes", trust_chat_template=True) as made:
        yield made


def called(message: ChatCompletionMessage) -> list[tuple[str, Any]]:
    assert len({call.id for call in message.tool_calls or ()}) == len(message.tool_calls or ())
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]


def streamed(client: OpenAI, **ask: Any) -> tuple[str, list[tuple[str, Any]], str]:
    """(content, calls, why it ended), added up as a client does."""
    content, names, arguments, ids, reason = "", [], [], [], ""
    for chunk in client.chat.completions.create(**ask, stream=True):
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for call in choice.delta.tool_calls or ():
            if call.index == len(names):
                assert call.type == "function"
                ids.append(call.id)
                names.append(call.function.name)
                arguments.append(call.function.arguments)
            else:
                assert (call.id, call.type, call.function.name) == (None, None, None)
                arguments[call.index] += call.function.arguments
    assert len({*ids}) == len(ids)
    return content, [(name, json.loads(text)) for name, text in zip(names, arguments, strict=True)], reason


def test_a_named_function_gets_arguments_that_keep_its_schema(client: OpenAI) -> None:
    answer = client.chat.completions.create(**ASK, tool_choice=NAMED, n=4)
    for choice in answer.choices:
        ((name, arguments),) = called(choice.message)
        jsonschema.validate(arguments, WEATHER)
        assert (name, choice.message.content, choice.finish_reason) == ("get_weather", None, "stop")
    first = called(answer.choices[0].message)
    assert streamed(client, **ASK, tool_choice=NAMED) == ("", first, "stop")


def test_required_calls_are_of_the_tools_that_there_are(client: OpenAI) -> None:
    ask = {**ASK, "tool_choice": "required", "max_tokens": 120}
    answer = client.chat.completions.create(**ask, n=8)
    seen = set()
    for choice in answer.choices:
        assert choice.message.tool_calls
        assert choice.message.content is None
        for place, call in enumerate(choice.message.tool_calls):
            seen.add(call.function.name)
            if choice.finish_reason == "length" and place == len(choice.message.tool_calls) - 1:
                continue  # cut within it
            jsonschema.validate(json.loads(call.function.arguments), WEATHER if call.function.name != "now" else {})
    assert seen == {"get_weather", "now"}


@pytest.mark.parametrize("history", [lambda said: said, ChatCompletionMessage.model_dump], ids=["message", "dict"])
def test_a_conversation_goes_on_after_a_call(client: OpenAI, history: Callable[[ChatCompletionMessage], Any]) -> None:
    """As OpenAI's guide does it: what was answered goes back as it is, and each call's result with its id."""
    ask, first = {**ASK, "max_tokens": 60}, client.chat.completions.create(**ASK, tool_choice=NAMED)
    said = first.choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in said.tool_calls or ()]
    messages = [{"role": "developer", "content": "Be brief."}, *ASK["messages"], history(said), *results]
    text = client.chat.completions.create(**{**ask, "messages": messages}, tool_choice="none")
    assert (text.choices[0].message.tool_calls, bool(text.choices[0].message.content)) == (None, True)
    assert text.usage
    assert first.usage
    assert text.usage.prompt_tokens > first.usage.prompt_tokens
    more = [*messages, history(text.choices[0].message), {"role": "user", "content": "And in 北京?"}]
    again = client.chat.completions.create(**{**ask, "messages": more}, tool_choice=NAMED)
    assert streamed(client, **{**ask, "messages": more}, tool_choice=NAMED)[1] == called(again.choices[0].message)
    jsonschema.validate(called(again.choices[0].message)[0][1], WEATHER)


def test_parallel_calls_can_be_ruled_out(client: OpenAI) -> None:
    ask = {**ASK, "tool_choice": "required", "parallel_tool_calls": False}
    whole = client.chat.completions.create(**ask).choices[0]
    assert len(called(whole.message)) == 1
    assert whole.finish_reason == "tool_calls"
    assert streamed(client, **ask) == ("", called(whole.message), "tool_calls")


def test_a_call_that_a_stop_string_cuts_is_none_to_be_made(client: OpenAI) -> None:
    """Held back for the stop string, the first texts are empty: the calls are read all the same."""
    ask = {**ASK, "tools": TOOLS[:1], "tool_choice": "required", "parallel_tool_calls": False}
    ask["stop"] = ["xyz", '"days"']
    whole = client.chat.completions.create(**ask).choices[0]
    (call,) = whole.message.tool_calls
    assert (whole.finish_reason, whole.message.content, call.function.name) == ("stop", None, "get_weather")
    assert call.function.arguments.startswith('{"place": ')
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**ask, stream=True)]
    pieces = [piece.function.arguments for chunk in chunks for piece in chunk.delta.tool_calls or ()]
    assert "".join(pieces) == call.function.arguments
    assert [chunk.finish_reason for chunk in chunks][-1] == "stop"
    assert not any(chunk.delta.content for chunk in chunks)
    uncut = {**ask, "stop": ["xyz"]}
    assert streamed(client, **uncut) == ("", called(client.chat.completions.create(**uncut).choices[0].message),
                                         "tool_calls")  # fmt: skip


@pytest.mark.parametrize("max_tokens", [1, 4])
def test_a_list_of_calls_that_is_cut_early_leaves_nothing_as_content(client: OpenAI, max_tokens: int) -> None:
    ask = {**ASK, "tool_choice": "required", "max_tokens": max_tokens}
    whole = client.chat.completions.create(**ask).choices[0]
    assert (whole.message.content, whole.message.tool_calls, whole.finish_reason) == ("", None, "length")
    assert streamed(client, **ask) == ("", [], "length")


def test_calls_in_the_model_s_own_format_are_read(hermes: Running) -> None:
    client, form = hermes.client(), {"structured_outputs": {"regex": HERMES}}
    whole = client.chat.completions.create(**ASK, extra_body=form).choices[0]
    names = [name for name, _ in called(whole.message)]
    assert (names, whole.message.content, whole.finish_reason) == (["get_weather", "now"], "I look.", "tool_calls")
    assert streamed(client, **ASK, extra_body=form) == ("I look.", called(whole.message), "tool_calls")
    first = client.chat.completions.create(**ASK, extra_body={**form, "parallel_tool_calls": False}).choices[0]
    assert called(first.message) == called(whole.message)[:1]
    plain = client.chat.completions.create(**ASK, tool_choice="none", extra_body=form).choices[0]
    assert plain.message.tool_calls is None
    assert plain.finish_reason == "stop"
    assert re.fullmatch(HERMES, plain.message.content)


def test_an_answer_without_a_call_is_as_without_tools(hermes: Running) -> None:
    client, ask = hermes.client(), {**ASK, "temperature": 0}
    without = client.chat.completions.create(**{name: value for name, value in ask.items() if name != "tools"})
    answer = client.chat.completions.create(**ask)
    assert answer.choices == without.choices
    assert streamed(client, **ask)[0] == without.choices[0].message.content


@pytest.mark.parametrize(
    ("text", "is_held"),
    [
        ("Free text, and <tool_box>.", True),
        ('Look:\n<tool_call>\n{"name": "get_weather", "arguments": {"place": "Paris", "days": 2}}\n</tool_call>', True),
        ('<tool_call>\n{"name": "free", "arguments": {"any": [1]}}\n</tool_call>\n<tool_call>\n{"name": "get', True),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"place": "Rome', False),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"place": "Paris", "days": 2, "', False),
        ('<tool_call>\n{"name": "unknown', False),
    ],
)
def test_strict_tools_hold_what_a_model_calls_of_its_own_will(hermes: Running, text: str, is_held: bool) -> None:
    strict = {"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}
    free = {"type": "function", "function": {"name": "free"}}
    form = ToolUse(ChatRequest(messages=[], tools=[strict, free]), HermesToolParser).form()
    assert form is not None
    matcher = hermes.llm.engine.input_processor.grammars.compile(form)._start.deep_copy()
    tokens = hermes.llm.engine.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert (matcher.try_consume_tokens(tokens) == len(tokens)) is is_held


def test_arguments_that_a_schema_does_not_know_are_none() -> None:
    """But where parts of a schema add up, none of them says what all may have."""
    part = {"properties": {"properties": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"enum": [{"$ref": 1}]}}}
    closed = {"properties": {"properties": {"$ref": "#/x/$defs/A"}}, "additionalProperties": False}
    assert closed_schema(part, "#/x") == {**closed, "$defs": part["$defs"]}
    for is_open in ({**part, "additionalProperties": {}}, {"allOf": [part, {"properties": {"b": {}}}]}):
        assert closed_schema(is_open) == is_open
    assert closed_schema({"type": "array", "items": {"anyOf": [{"properties": {}}, True]}}) == {
        "type": "array", "items": {"anyOf": [{"properties": {}, "additionalProperties": False}, True]}
    }  # fmt: skip


def test_calls_and_their_results_go_through_the_chat_template(hermes: Running) -> None:
    client = hermes.client()
    answer = client.chat.completions.create(**ASK, tool_choice=NAMED).choices[0].message
    assert answer.tool_calls
    history = answer.model_dump()
    history["tool_calls"][0]["index"] = 0  # as a message has it that is added up from deltas
    messages = [*ASK["messages"], history, *(
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in answer.tool_calls
    )]  # fmt: skip
    ask = {"messages": messages, "tools": TOOLS, "chat_template": TEMPLATE, "add_generation_prompt": False}
    tokens = httpx.post(f"{hermes.url}/tokenize", json=ask).json()["tokens"]
    arguments = json.dumps(json.loads(answer.tool_calls[0].function.arguments), ensure_ascii=False)
    assert hermes.llm.engine.tokenizer.decode(tokens) == (
        "".join(f"{json.dumps(tool, ensure_ascii=False)}|" for tool in TOOLS)
        + "user: The weather in Paris?|"
        + f"assistant: <tool_call>get_weather {arguments}</tool_call>|tool: sunny|"
    )
    assert client.chat.completions.create(**{**ASK, "messages": messages}).choices[0].message.content
    llm = LLM(**ENGINE)
    (output,) = llm.chat(messages, tools=TOOLS, chat_template=TEMPLATE, add_generation_prompt=False, use_tqdm=False)
    assert output.prompt_token_ids == tokens


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "get_wether"}}},
         "tool_choice.function.name must be one of the tools, got 'get_wether'; did you mean 'get_weather'?"),
        ({"tool_choice": "required", "tools": []}, "tool_choice must not ask for a call without tools"),
        ({"tool_choice": "sometimes"}, "tool_choice must be 'none', 'auto' or 'required' or an object, got"),
        ({"tools": TOOLS + TOOLS[:1], "tool_choice": "none"}, "tools must have names that differ"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type must be 'function', got 'retrieval'"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}},
         "response_format must not be given with a tool_choice that asks for a call"),
        ({"tool_choice": "required", "tools": [{"type": "function", "function": {
            "name": "f", "parameters": {"type": "nonsense"}}}]}, "tools cannot be kept: structured_outputs.json must"),
        ({"tool_choice": "none", "functions": [{"name": "f"}]}, "functions must be [] or null"),
        ({"tool_choice": "none", "messages": [{"role": "user", "content": None}]},
         "messages[0].content must be text, or a list of text parts, got null"),
        ({"tool_choice": "none", "tools": TOOLS * 65}, "tools must have at most 128 entries, got 130"),
    ],
)  # fmt: skip
def test_what_is_wrong_about_tools_is_named(client: OpenAI, more: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{**ASK, **{k: v for k, v in more.items() if k != "functions"}},
                                       extra_body={k: v for k, v in more.items() if k == "functions"})  # fmt: skip
    assert caught.value.body["message"].startswith(message)  # type: ignore[index]


def test_calls_in_a_format_that_is_not_known_are_text_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strict = {"type": "function", "function": {"name": "now", "strict": True}}
    form = {"structured_outputs": {"choice": ['<tool_call>{"name": "now"}</tool_call>']}}
    with running() as server:
        for _ in range(2):
            ask = {**ASK, "tools": [*TOOLS[:1], strict], "extra_body": form}
            (choice,) = server.client().chat.completions.create(**ask).choices
            assert (choice.message.content, choice.finish_reason) == (*form["structured_outputs"]["choice"], "stop")
            assert choice.message.tool_calls is None
    assert sum("serve with --tool-call-parser" in record.message for record in caplog.records) == 1


def test_strict_calls_in_a_format_that_no_form_holds_are_refused() -> None:
    with running(tool_call_parser="llama3_json") as server:
        tools = [{"type": "function", "function": {"name": "now", "strict": True}}]
        with pytest.raises(openai.BadRequestError, match="tools must not be strict with tool_choice 'auto'"):
            server.client().chat.completions.create(**{**ASK, "tools": tools})


@pytest.mark.parametrize("unit", ["x ", " ", '<tool_call>{"name": 5} ', '<tool_call>{"name": "now"}</tool_call>'])
def test_the_work_for_a_message_grows_with_its_text(counted_patterns: None, unit: str) -> None:  # noqa: F811
    for size in (4, 10**9):
        works = []
        for text in (unit * 30, unit * 60):
            reader = MessageReader(ToolUse(ChatRequest(**ASK), HermesToolParser), ReasoningParser("maybe"))

            def take(piece: str, is_final: bool, reader: MessageReader = reader) -> None:
                reader.delta(CompletionOutput(0, piece, [], finish_reason="stop" if is_final else None))

            works.append(work_of(text, size, take))
        assert works[1] <= 2.1 * works[0] + 100


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", "responses"])
def test_a_long_answer_is_read_beside_the_event_loop(
    hermes: Running, monkeypatch: pytest.MonkeyPatch, path: str, is_streamed: bool
) -> None:
    monkeypatch.setattr(streams, "LARGE", 0)
    real, threads = HermesToolParser.extract_tool_calls_streaming, set[str]()

    def read(self: HermesToolParser, text: str, **more: Any) -> Any:
        threads.add(threading.current_thread().name.rpartition("_")[0])
        return real(self, text, **more)

    monkeypatch.setattr(HermesToolParser, "extract_tool_calls_streaming", read)
    body: dict[str, Any] = {"stream": is_streamed, "temperature": 0}
    if path == "responses":
        tool = {"type": "function", "name": "now", "parameters": {}}
        body |= {"input": "Now?", "tools": [tool], "max_output_tokens": 9}
    else:
        body |= {"messages": ASK["messages"], "tools": TOOLS, "max_tokens": 9}
    answer = httpx.post(f"{hermes.url}/v1/{path}", json=body, timeout=600)
    assert (answer.status_code, threads) == (200, {"folovllm-background"})
