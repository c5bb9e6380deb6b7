"""The body of POST /v1/responses, and the conversation that its items are.

    input items                         messages of a chat
    message                             one of its role
    reasoning, message, function_call   one of the assistant, where they follow each other
    function_call_output                one of the role "tool"

vLLM: entrypoints/openai/responses/protocol.py
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from folovllm.serving.openai.body import Body, FreeJson, Listed, WholeBody, at_most, by_type, described
from folovllm.serving.openai.protocol import ChatRequest, Content


class Item(Body):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class FunctionCallItem(Body):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class FunctionCallOutput(Body):
    type: Literal["function_call_output"]
    call_id: str
    output: Content


class ReasoningPart(Body):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(Body):
    type: Literal["reasoning"]
    summary: Listed[ReasoningPart] | None = None
    content: Listed[ReasoningPart] | None = None


AnyItem = Annotated[
    Annotated[Item, Tag("[message]")]
    | Annotated[FunctionCallItem, Tag("[function_call]")]
    | Annotated[FunctionCallOutput, Tag("[function_call_output]")]
    | Annotated[ReasoningItem, Tag("[reasoning]")],
    by_type("message"),
]


class Format(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: FreeJson | None = Field(None, alias="schema")
    strict: bool | None = None


class Text(Body):
    format: Format | None = None


class Reasoning(Body):
    effort: str | None = None


Included = Literal[
    "reasoning.encrypted_content", "file_search_call.results", "web_search_call.results",
    "web_search_call.action.sources", "message.input_image.image_url", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]  # fmt: skip
"""Parts of an answer that none here has: it is whole without them."""


class FunctionTool(Body):
    type: Literal["function"]
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: FreeJson | None = None
    strict: bool | None = None


class NamedFunction(Body):
    type: Literal["function"]
    name: str


class ResponsesRequest(WholeBody):
    """POST /v1/responses"""

    model_config = described(input="What is prefix caching?", max_output_tokens=60)

    input: str | Annotated[list[AnyItem], at_most(4096)]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    text: Text | None = None
    tools: Annotated[list[FunctionTool], at_most(128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: Body | None = None
    metadata: Annotated[dict[str, str], at_most(64)] | None = None
    reasoning: Reasoning | None = None
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    include: Listed[Included] | None = None

    def messages(self) -> list[dict[str, Any]]:
        """Of the input alone."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        return to_messages(item.model_dump(exclude_none=True) for item in self.input)

    def as_chat(self, messages: list[dict[str, Any]]) -> ChatRequest:
        """messages: those before, and those of the input. Raises ValueError: a form without its schema."""
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        asked: dict[str, Any] = {"model": self.model, "messages": [*system, *messages]}
        asked["max_completion_tokens"] = self.max_output_tokens
        asked["reasoning_effort"] = self.reasoning and self.reasoning.effort
        asked |= {"temperature": self.temperature, "top_p": self.top_p, "stream": self.stream}
        asked["parallel_tool_calls"], asked["tool_choice"] = self.parallel_tool_calls, self.tool_choice
        if isinstance(self.tool_choice, NamedFunction):
            asked["tool_choice"] = {"type": "function", "function": {"name": self.tool_choice.name}}
        asked["tools"] = self.tools and [
            {"type": "function", "function": tool.model_dump(exclude={"type"})} for tool in self.tools
        ]
        form = self.text.format if self.text is not None else None
        if form is not None and form.type == "json_schema":
            if form.schema_ is None:
                raise ValueError("text.format.schema must be given with type 'json_schema'")
            schema = {"name": form.name or "", "schema": form.schema_}
            asked["response_format"] = {"type": form.type, "json_schema": schema}
        elif form is not None:
            asked["response_format"] = {"type": form.type}
        return ChatRequest.model_validate(asked)


def to_messages(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items of an input, or those that a response consists of."""
    messages: list[dict[str, Any]] = []

    def assistant(*fields: str) -> dict[str, Any]:
        """The message that the item belongs to: the last, if that is the assistant's and has none of these fields."""
        if not messages or messages[-1]["role"] != "assistant" or any(field in messages[-1] for field in fields):
            messages.append({"role": "assistant"})
        return messages[-1]

    for item in items:
        if item["type"] == "function_call":
            call = {"name": item["name"], "arguments": item["arguments"]}
            assistant().setdefault("tool_calls", []).append({"id": item["call_id"], "function": call})
        elif item["type"] == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": _parts(item["output"])})
        elif item["type"] == "reasoning":
            parts = item.get("content") or item.get("summary") or ()
            assistant("reasoning", "content", "tool_calls")["reasoning"] = "".join(part["text"] for part in parts)
        elif item["role"] == "assistant":
            assistant("content", "tool_calls")["content"] = _parts(item["content"])
        else:
            messages.append({"role": item["role"], "content": _parts(item["content"])})
    return messages


def _parts(content: Any) -> Any:
    return content if isinstance(content, str) else [{"type": "text", "text": part["text"]} for part in content]
