"""What the server answers, it takes: every answer, cut at any place, comes back as history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from folovllm.outputs import CompletionOutput
from folovllm.serving.openai.background import at_once
from folovllm.serving.openai.protocol import ChatRequest
from folovllm.serving.openai.responses import OutputItems
from folovllm.serving.openai.responses_protocol import ResponsesRequest
from folovllm.serving.openai.serving_chat import _UNUSED
from folovllm.serving.openai.tool_use import MessageReader, ToolUse
from folovllm.serving.reasoning import ReasoningParser
from folovllm.serving.tool_parsers.formats import HermesToolParser, Qwen3XMLToolParser
from tests.serve.support import Running, running

QUESTION: dict[str, Any] = {"role": "user", "content": "The weather?"}
DAYS = {"type": "object", "properties": {"days": {"type": "integer"}}}
TOOL: dict[str, Any] = {"name": "get_weather", "parameters": DAYS}
TOOLS = [{"type": "function", "function": TOOL}]
ANSWERS = [
    (HermesToolParser, '<think>Hm.</think>I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"place": "Par'
     '\\u00e9 \\"s\\"", "days": [2, {"a": tru]}}}\n</tool_call>'),
    (HermesToolParser, '<tool_call>\n{"name": "get_weather", "arguments": {place: Paris}}\n</tool_call>'),
    (HermesToolParser, '<tool_call>\n{"name": "get_weather", "arguments": "no object"}\n</tool_call>'),
    (HermesToolParser, '<tool_call>\n{"name": "get_weather", "arguments": [1, 2]}\n</tool_call>'),
    (Qwen3XMLToolParser, "<tool_call>\n<function=get_weather>\n<parameter=place>\nParis\n</parameter>\n<parameter=days>"
     "\n12\n</parameter>\n</function>\n</tool_call>"),
]  # fmt: skip
CALLS = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}WRITE{% endfor %}{% endfor %}"
TEMPLATES = [
    CALLS.replace("WRITE", "{{ c.function.arguments | tojson }}"),
    CALLS.replace("WRITE", "{% for name, value in c.function.arguments | items %}{{ name }}={{ value }}{% endfor %}"),
    CALLS.replace("WRITE", "{{ c.function.arguments.items() | list | length }}"),
]


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running(trust_chat_template=True, engine={"num_kv_blocks": 256}) as made:
        yield made


def cuts(parser: Any, text: str) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """(as a chat's message, as items of a response) of the text up to each of its characters."""
    use = ToolUse(ChatRequest(messages=[], tools=TOOLS), parser)
    for end in range(len(text) + 1):
        choice = CompletionOutput(index=0, text=text[:end], token_ids=[], finish_reason="length")
        readers = [MessageReader(use, ReasoningParser("maybe")) for _ in range(2)]
        items: Any = OutputItems(readers[0], None, None)  # type: ignore[arg-type]  # neither is asked
        items.status = "incomplete"
        for piece in readers[0].pieces(choice):
            list(items.add(piece))
        list(items.end())
        yield {"role": "assistant", **readers[1].message(choice), "refusal": None, **_UNUSED}, items.items


@pytest.mark.parametrize(("parser", "text"), ANSWERS)
def test_an_answer_that_is_cut_anywhere_is_taken_back(served: Running, parser: Any, text: str) -> None:
    serving = served.app.state.serving
    for message, items in cuts(parser, text):
        asked: dict[str, Any] = {"messages": [QUESTION, message, QUESTION]}
        given = ResponsesRequest.model_validate({"input": [QUESTION, *items, QUESTION]})
        for body in (ChatRequest.model_validate(asked), given.as_chat(given.messages())):
            for template in TEMPLATES:
                body.chat_template = template
                assert serving.conversation(body, at_once, body.tools)["prompt_token_ids"]
    assert httpx.post(f"{served.url}/v1/chat/completions", json={**asked, "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"content": None, "refusal": "I will not."}, "I will not."),
        ({"content": [{"type": "refusal", "refusal": "I will not."}]}, "I will not."),
        ({"content": None}, ""),
        ({"refusal": None, "audio": None, "function_call": None, "tool_calls": None, "annotations": []}, ""),
        ({"content": None, "tool_calls": [], "reasoning": None, "name": None}, ""),
        ({"content": None, "reasoning_content": "Hm."}, ""),
    ],
)
def test_a_refusal_is_what_was_said_and_null_is_nothing(server: Running, said: dict[str, Any], text: str) -> None:
    def tokens(message: dict[str, Any]) -> Any:
        ask = {"messages": [QUESTION, {"role": "assistant", **message}, QUESTION]}
        return httpx.post(f"{server.url}/tokenize", json=ask).json().get("tokens")

    assert tokens(said) == tokens({"content": text}) is not None
    if isinstance(said.get("content"), list):
        asked = {"input": [QUESTION, {"role": "assistant", **said}, QUESTION], "max_output_tokens": 1}
        assert httpx.post(f"{server.url}/v1/responses", json=asked).status_code == 200
