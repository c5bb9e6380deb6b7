"""POST /v1/responses, for text: OpenAI's newer interface over the same way as a chat's.

    input, instructions ──▶ ChatRequest ──▶ Work ──▶ outputs ──▶ one response, or events of it

Nothing is kept from one request to the next: a conversation is sent whole. A stream ends with its last event, and with
the [DONE] that all streams of this server have.

vLLM: entrypoints/openai/responses/serving.py
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import count
from typing import Any, Literal

from pydantic import Field

from folovllm.outputs import RequestOutput
from folovllm.serving.openai.answers import encoded, usage
from folovllm.serving.openai.aside import at_once
from folovllm.serving.openai.errors import APIError
from folovllm.serving.openai.protocol import Body, ChatRequest, Listed
from folovllm.serving.openai.serving import Work
from folovllm.serving.openai.serving_chat import ChatServing
from folovllm.serving.openai.streams import Burst

# How a chat request calls what is wrong, and how this one does.
_NAMES = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}


class ContentPart(Body):
    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[None] | None = Field(None, max_length=0)
    logprobs: list[None] | None = Field(None, max_length=0)


class Item(Body):
    """A message. What answers have beside role and content may come back with them, and says nothing."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Listed[ContentPart]
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class Format(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class Text(Body):
    format: Format | None = None


class ResponsesRequest(Body):
    """POST /v1/responses"""

    input: str | Listed[Item]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    text: Text | None = None
    stream: bool | None = None
    metadata: dict[str, str] | None = None
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    include: list[None] | None = Field(None, max_length=0)

    def as_chat(self) -> ChatRequest:
        """Raises ValueError: a form without its schema."""
        items = [Item(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        messages: list[dict[str, Any]] = [{"role": "system", "content": self.instructions}] if self.instructions else []
        for item in items:
            parts = item.content if isinstance(item.content, str) else [
                {"type": "text", "text": part.text} for part in item.content
            ]  # fmt: skip
            messages.append({"role": "system" if item.role == "developer" else item.role, "content": parts})
        asked: dict[str, Any] = {"model": self.model, "messages": messages}
        asked["max_completion_tokens"] = self.max_output_tokens
        asked |= {"temperature": self.temperature, "top_p": self.top_p, "stream": self.stream}
        form = self.text.format if self.text is not None else None
        if form is not None and form.type == "json_schema":
            if form.schema_ is None:
                raise ValueError("text.format.schema must be given with type 'json_schema'")
            schema = {"name": form.name or "", "schema": form.schema_}
            asked["response_format"] = {"type": form.type, "json_schema": schema}
        elif form is not None:
            asked["response_format"] = {"type": form.type}
        return ChatRequest.model_validate(asked)


class ResponsesServing:
    def __init__(self, chat: ChatServing) -> None:
        self.chat, self.serving = chat, chat.serving

    async def work(self, body: ResponsesRequest, key: str) -> Work:
        """Raises APIError: what is wrong with the request, by the field's name."""
        try:
            return await self.chat.work(body.as_chat(), key)
        except ValueError as error:
            raise APIError(400, str(error), param=str(error).split()[0]) from error
        except APIError as error:
            name = next((name for name in _NAMES if (error.param or "").startswith(name)), None)
            if name is None:
                raise
            message, param = (text.replace(name, _NAMES[name], 1) for text in (error.message, error.param or ""))
            raise APIError(error.status, message, param=param, code=error.code) from error

    async def whole(self, body: ResponsesRequest, work: Work) -> bytes:
        async with aclosing(self.serving.outputs(work)) as outputs:
            async for _, output in outputs:
                newest = output
        return encoded(_ended(self._response(body), newest), at_once)

    async def events(self, body: ResponsesRequest, work: Work) -> AsyncGenerator[Burst, None]:
        response, numbers = self._response(body), count()
        item = _item(_id("msg"), "", "in_progress")
        place = {"item_id": item["id"], "output_index": 0, "content_index": 0}

        def burst(*events: dict[str, Any], is_last: bool = False) -> Burst:
            return Burst(b"".join(_event(event, next(numbers)) for event in events), is_last)

        size = 0
        async with aclosing(self.serving.outputs(work)) as outputs:
            async for _, output in outputs:
                if not response["output"]:
                    yield burst(
                        {"type": "response.created", "response": response},
                        {"type": "response.in_progress", "response": response},
                        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
                        {"type": "response.content_part.added", **place, "part": _part("")},
                    )
                    response = {**response, "output": [item]}
                text = output.outputs[0].text
                if len(text) > size:
                    yield burst({"type": "response.output_text.delta", **place, "delta": text[size:], "logprobs": []})
                    size = len(text)
        ended = _ended(response, output)
        yield burst(
            {"type": "response.output_text.done", **place, "text": text, "logprobs": []},
            {"type": "response.content_part.done", **place, "part": _part(text)},
            {"type": "response.output_item.done", "output_index": 0, "item": ended["output"][0]},
            {"type": f"response.{ended['status']}", "response": ended},
            is_last=True,
        )

    def _response(self, body: ResponsesRequest) -> dict[str, Any]:
        """As it is before the first token."""
        given = body.model_dump(by_alias=True)
        fields = ("instructions", "max_output_tokens", "temperature", "top_p", "text", "metadata", "truncation")
        return {
            "id": _id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "model": self.serving.model_name,
            "status": "in_progress",
            "output": [],
            "error": None,
            "incomplete_details": None,
            "usage": None,
            "tools": [],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            **{name: given[name] for name in fields},
        }


def _ended(response: dict[str, Any], output: RequestOutput) -> dict[str, Any]:
    (choice,) = output.outputs
    status = "completed" if choice.finish_reason == "stop" else "incomplete"
    used = usage([output])
    item = response["output"][0]["id"] if response["output"] else _id("msg")
    return {
        **response,
        "status": status,
        "incomplete_details": None if status == "completed" else {"reason": "max_output_tokens"},
        "output": [_item(item, choice.text, status)],
        "usage": {
            "input_tokens": used["prompt_tokens"],
            "input_tokens_details": used["prompt_tokens_details"],
            "output_tokens": used["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used["total_tokens"],
        },
    }


def _item(name: str, text: str, status: str) -> dict[str, Any]:
    return {"id": name, "type": "message", "role": "assistant", "status": status, "content": [_part(text)]}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _event(event: dict[str, Any], number: int) -> bytes:
    name = event["type"].encode()
    return b"event: %b\ndata: %b\n\n" % (name, encoded({**event, "sequence_number": number}, at_once))


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
