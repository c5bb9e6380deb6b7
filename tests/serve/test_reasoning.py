"""Thoughts over HTTP: fields of their own, no calls inside of them, and room before a form. The embedded model does not
think: its texts are forced, by a form or by what the chat template begins."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import BadRequestError
from tokenizers import AddedToken
from transformers import AutoTokenizer

from folovllm.model_loader.model_files import EMBEDDED_FOLDER
from folovllm.sample.structured.grammars import GrammarCompiler
from folovllm.serving.openai.protocol import ChatRequest
from folovllm.serving.openai.tool_use import ToolUse
from folovllm.serving.reasoning import Thinks, after_thoughts
from folovllm.serving.tool_parsers.formats import HermesToolParser
from folovllm.structured_outputs import StructuredOutputsParams
from tests.serve.support import Running, running
from tests.serve.test_tools import ASK, TOOLS

CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
THOUGHT = r"<think>\nOr <tool_call>\n\{\}\n</tool_call>\?\n</think>"
ENDS_OPEN = "{{ messages[0].content }}<think>\n"


@pytest.fixture(scope="module")
def thinker() -> Iterator[Running]:
    with running(tool_call_parser="hermes", reasoning_parser="qwen3", trust_chat_template=True) as made:
        yield made


def added_up(client: Any, **ask: Any) -> dict[str, str]:
    """The fields of a streamed message that are texts."""
    said: dict[str, str] = {}
    for chunk in client.chat.completions.create(**ask, stream=True):
        for name, value in chunk.choices[0].delta.model_dump(exclude_none=True).items():
            if isinstance(value, str):
                said[name] = said.get(name, "") + value
    return said


def test_thoughts_have_a_field_of_their_own_and_calls_in_them_are_none(
    thinker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("folovllm.serving.reasoning.after_thoughts", lambda form, *_: form)
    client, thoughts = thinker.client(), "\nOr <tool_call>\n{}\n</tool_call>?\n"
    ask = {**ASK, "extra_body": {"structured_outputs": {"regex": THOUGHT + r"\n\nI look\."}}}
    whole = client.chat.completions.create(**ask).choices[0]
    assert (whole.message.reasoning, whole.message.reasoning_content) == (thoughts, thoughts)
    assert (whole.message.content, whole.message.tool_calls, whole.finish_reason) == ("\n\nI look.", None, "stop")
    streamed = {"role": "assistant", "reasoning": thoughts, "reasoning_content": thoughts, "content": "\n\nI look."}
    assert added_up(client, **ask) == streamed
    call = CALL.replace("{", r"\{").replace("}", r"\}")
    ask = {**ASK, "extra_body": {"structured_outputs": {"regex": f"{THOUGHT}\n\n{call}"}}}
    called = client.chat.completions.create(**ask).choices[0]
    assert (called.message.content, len(called.message.tool_calls), called.finish_reason) == (None, 1, "tool_calls")
    cut = client.chat.completions.create(**{**ask, "max_tokens": 9}).choices[0].message
    assert (cut.content, cut.tool_calls) == (None, None)
    assert thoughts.startswith(cut.reasoning)
    history = [*ASK["messages"], cut.model_dump(), {"role": "user", "content": "So?"}]
    template = "{% for m in messages %}{{ m.reasoning_content }}|{% endfor %}"
    ask = {"messages": history, "chat_template": template}
    tokens = httpx.post(f"{thinker.url}/tokenize", json=ask).json()["tokens"]
    assert thinker.llm.engine.tokenizer.decode(tokens) == f"|{cut.reasoning}||"


def test_what_does_not_think_is_content_and_keeps_the_form(thinker: Running) -> None:
    client = thinker.client()
    ask = {**ASK, "tools": [], "extra_body": {"structured_outputs": {"choice": ["yes", "no"]}}}
    message = client.chat.completions.create(**ask).choices[0].message
    assert message.content in ("yes", "no")
    assert (message.reasoning, message.reasoning_content) == (None, None)


def test_a_prompt_that_begins_the_thoughts_leaves_room_for_them(thinker: Running) -> None:
    client = thinker.client()
    body = {"chat_template": ENDS_OPEN, "structured_outputs": {"choice": ["yes"]}}
    message = client.chat.completions.create(**{**ASK, "tools": [], "max_tokens": 20, "extra_body": body}).choices[0]
    assert message.message.content is None
    assert message.message.reasoning
    call = {**ASK, "tool_choice": "required", "max_tokens": 20, "extra_body": {"chat_template": ENDS_OPEN}}
    required = client.chat.completions.create(**call).choices[0].message
    assert (required.content, required.tool_calls) == (None, None)
    assert added_up(client, **call)["reasoning"] == required.reasoning


def test_what_is_wrong_with_a_form_is_said_of_the_form(thinker: Running) -> None:
    with pytest.raises(BadRequestError, match=r"structured_outputs.regex must be something that can be compiled, got"):
        thinker.client().chat.completions.create(**{**ASK, "extra_body": {"structured_outputs": {"regex": "("}}})


@pytest.fixture(scope="module", params=["text", "tokens"])
def compiler(request: pytest.FixtureRequest) -> GrammarCompiler:
    """Of a tokenizer whose markers are text, or tokens, as in the models that think."""
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_FOLDER)
    if request.param == "tokens":
        markers = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in markers])
    return GrammarCompiler(tokenizer, len(tokenizer), frozenset([tokenizer.eos_token_id]))


def takes(compiler: GrammarCompiler, form: StructuredOutputsParams, text: str) -> bool:
    matcher = compiler.compile(form)._start.deep_copy()
    tokens = compiler.tokenizer(text, add_special_tokens=False)["input_ids"]
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


SCHEMA: dict[str, Any] = {
    "type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["a"], "$defs": {"A": {"enum": [1]}}
}  # fmt: skip
FORMS = [
    (StructuredOutputsParams(json=SCHEMA), '{"a": 1}'),
    (StructuredOutputsParams(json=json.dumps(SCHEMA)), '{"a": 1}'),
    (StructuredOutputsParams(json_object=True), '{"b": [2]}'),
    (StructuredOutputsParams(regex=r"a/b\/[0-9]\n" + "\n"), "a/b/5\n\n"),
    (StructuredOutputsParams(choice=['"yes"', "狗"]), '"yes"'),
    (StructuredOutputsParams(grammar='start: "{" X\nX: /[a]+/'), "{aa"),
    (StructuredOutputsParams(grammar='root ::= "{" x\nx ::= [a] x | [a]'), "{aa"),
]


@pytest.mark.parametrize(("form", "text"), FORMS)
def test_a_form_begins_where_thoughts_end(compiler: GrammarCompiler, form: StructuredOutputsParams, text: str) -> None:
    tokens = compiler.tokenizer.get_added_vocab()  # type: ignore[union-attr]
    expected: dict[Thinks, list[bool]] = {"no": [True, False, False], "maybe": [True, True, False],
                                          "yes": [False, True, True]}  # fmt: skip
    for thinks, taken in expected.items():
        after = after_thoughts(form, thinks, tokens)
        texts = (text, f"<think>\nsay: {text}</think>{text}", f"a\n</think>{text}")
        assert [takes(compiler, after, each) for each in texts] == taken, thinks
        assert not takes(compiler, after, f"<think>a</think>no {text}")
        assert not takes(compiler, after, "<think>\nno end")


def test_strict_calls_are_written_with_the_tokens_that_the_tokenizer_has(compiler: GrammarCompiler) -> None:
    tokens = compiler.tokenizer.get_added_vocab()  # type: ignore[union-attr]
    strict = {"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}
    form = ToolUse(ChatRequest(messages=[], tools=[strict]), HermesToolParser, tokens).form()
    assert form is not None
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"place": "Paris", "days": 2}}\n</tool_call>'
    for free, text in ((form, call), (after_thoughts(form, "maybe", tokens), f"<think>a</think>I look.\n{call}")):
        assert takes(compiler, free, text)
        assert not takes(compiler, free, text.replace("Paris", "Rome"))
