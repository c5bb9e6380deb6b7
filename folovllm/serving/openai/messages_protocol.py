"""The bodies of POST /v1/messages and /v1/messages/count_tokens, and the chat request that such a body is.

    blocks of a message          messages of a chat
    text                         one of its role
    thinking, text, tool_use     one of the assistant
    tool_result                  one of the role "tool"

vLLM: entrypoints/anthropic/protocol.py
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from folovllm.serving.openai.body import Body, FreeJson, WholeBody, Words, at_most, by_type, described
from folovllm.serving.openai.protocol import ChatRequest


class TextBlock(Body):
    type: Literal["text"]
    text: str


class ThinkingBlock(Body):
    type: Literal["thinking"]
    thinking: str


class ToolUseBlock(Body):
    type: Literal["tool_use"]
    id: str
    name: str
    input: FreeJson


class ToolResultBlock(Body):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[TextBlock], at_most(1024)] | None = None
    is_error: bool | None = None


Block = Annotated[
    Annotated[TextBlock, Tag("[text]")]
    | Annotated[ThinkingBlock, Tag("[thinking]")]
    | Annotated[ToolUseBlock, Tag("[tool_use]")]
    | Annotated[ToolResultBlock, Tag("[tool_result]")],
    by_type("text"),
]


class Message(Body):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], at_most(1024)]


class CustomTool(Body):
    type: Literal["custom"] | None = None
    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: FreeJson
    strict: bool | None = None


class ToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    """How much the model thinks is its own affair: `budget_tokens` is not known here."""

    type: Literal["enabled", "disabled", "adaptive"]


class JsonFormat(Body):
    type: Literal["json_schema"]
    schema_: FreeJson = Field(alias="schema")


class OutputConfig(Body):
    effort: str | None = None
    format: JsonFormat | None = None


class CountTokensRequest(WholeBody):
    """POST /v1/messages/count_tokens"""

    model_config = described(messages=[{"role": "user", "content": "What is prefix caching?"}])

    messages: Annotated[list[Message], at_most(4096)]
    model: str | None = None
    system: str | Annotated[list[TextBlock], at_most(1024)] | None = None
    tools: Annotated[list[CustomTool], at_most(128)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    def as_chat(self, **asked: Any) -> ChatRequest:
        """Raises ValueError: a tool that must be called has no name."""
        system = [{"role": "system", "content": _parts(self.system)}] if self.system else []
        asked |= {
            "model": self.model,
            "messages": [*system, *(each for one in self.messages for each in _to_chat(one))],
        }
        if self.messages and self.messages[-1].role == "assistant":  # it is to be gone on with
            asked |= {"continue_final_message": True, "add_generation_prompt": False}
        if self.tools:
            asked["tools"] = [{"type": "function", "function": _function(tool)} for tool in self.tools]
        if (choice := self.tool_choice) is not None:
            if choice.type == "tool" and choice.name is None:
                raise ValueError("tool_choice.name must be given with type 'tool'")
            named = {"type": "function", "function": {"name": choice.name}}
            asked["tool_choice"] = {"any": "required", "tool": named}.get(choice.type, choice.type)
            asked["parallel_tool_calls"] = not choice.disable_parallel_tool_use
        if self.thinking is not None:
            asked["chat_template_kwargs"] = {"enable_thinking": self.thinking.type != "disabled"}
        if (output := self.output_config) is not None:
            asked["reasoning_effort"] = output.effort
            if output.format is not None:
                schema = {"name": "answer", "schema": output.format.schema_}
                asked["response_format"] = {"type": "json_schema", "json_schema": schema}
        return ChatRequest.model_validate(asked)


class MessagesRequest(CountTokensRequest):
    """POST /v1/messages"""

    model_config = described(messages=[{"role": "user", "content": "What is prefix caching?"}], max_tokens=60)

    max_tokens: int = Field(ge=1)
    stop_sequences: Annotated[list[Words], at_most(64)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None

    def as_chat(self, **asked: Any) -> ChatRequest:
        names = ("max_tokens", "temperature", "top_p", "top_k", "stream")
        asked |= {name: getattr(self, name) for name in names}
        return super().as_chat(**asked, stop=self.stop_sequences or None)


def _to_chat(message: Message) -> list[dict[str, Any]]:
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    results, own = list[dict[str, Any]](), dict[str, Any]()
    for block in message.content:
        if isinstance(block, ToolResultBlock):
            content = [*_parts("Error:" if block.is_error else []), *_parts(block.content or "")]
            results.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})
        elif isinstance(block, ToolUseBlock):
            call = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
            own.setdefault("tool_calls", []).append({"id": block.id, "function": call})
        elif isinstance(block, ThinkingBlock):
            own["reasoning"] = own.get("reasoning", "") + block.thinking
        else:
            own.setdefault("content", []).extend(_parts([block]))
    return [*results, {"role": message.role, **own}] if own or not results else results


def _parts(content: str | list[TextBlock]) -> list[dict[str, Any]]:
    texts = [content] if isinstance(content, str) else [block.text for block in content]
    return [{"type": "text", "text": text} for text in texts]


def _function(tool: CustomTool) -> dict[str, Any]:
    return {**tool.model_dump(exclude={"type", "input_schema"}, exclude_none=True), "parameters": tool.input_schema}
