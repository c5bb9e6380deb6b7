"""POST /v1/responses: OpenAI's newer interface. It becomes a chat request, and the answer becomes items.

    previous_response_id ─▶ store ─▶ ChatRequest ─▶ ServeContext ─▶ outputs ──▶ items ──▶ one response, or events of it
    input, instructions  ──────────────┘                                    └─▶ store

A stream ends with its last event, and with the [DONE] that all streams of this server have.

vLLM: entrypoints/openai/responses/serving.py
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from folovllm.outputs import RequestOutput
from folovllm.serving.openai.background import at_once
from folovllm.serving.openai.errors import APIError, naming
from folovllm.serving.openai.formatting import encoded, usage
from folovllm.serving.openai.growing import Event, ItemsServing
from folovllm.serving.openai.protocol import ChatRequest
from folovllm.serving.openai.response_items import OutputItems, make_id
from folovllm.serving.openai.responses_protocol import ResponsesRequest, to_messages
from folovllm.serving.openai.serving_chat import ChatServing
from folovllm.serving.openai.serving_engine import ServeContext

# How a chat request calls what is wrong, and how this one does.
_NAMES = {
    "messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format",
    "tool_choice.function.name": "tool_choice.name",
}  # fmt: skip
MAX_STORED = 4096
MAX_STORED_SIZE = 2**26
"""Of the answers and conversations that are kept, as JSON: 64 Mi. What was asked for longest ago gives way."""
_BEGINS = ("created", "in_progress")

Messages = list[dict[str, Any]]


@dataclass
class Stored:
    """answer: the response, as JSON. messages: the conversation up to its end, without instructions."""

    answer: bytes
    messages: Messages
    size: int


class ResponseStore:
    """Responses by their ids; those of one key are not there for another."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], Stored] = OrderedDict()
        self._size = 0

    def get(self, key: str, response_id: str, field: str) -> Stored:
        """field: how the request calls the id. Raises APIError: it is not there."""
        if (key, response_id) not in self._kept:
            raise APIError(
                404,
                f"{field} must be that of a stored response, got {response_id!r}: it was never stored, or "
                "gave way to newer ones; send the conversation as input",
                param=field,
                code=f"{field.removesuffix('_id')}_not_found",
            )
        self._kept.move_to_end((key, response_id))
        return self._kept[key, response_id]

    def put(self, key: str, response_id: str, answer: bytes, messages: Messages) -> None:
        size = len(answer) + len(json.dumps(messages, ensure_ascii=False))
        self._kept[key, response_id] = Stored(answer, messages, size)
        self._size += size
        while self._size > MAX_STORED_SIZE or len(self._kept) > MAX_STORED:
            self._size -= self._kept.popitem(last=False)[1].size

    def delete(self, key: str, response_id: str) -> None:
        """Raises APIError: it is not there."""
        self._size -= self.get(key, response_id, "response_id").size
        del self._kept[key, response_id]


@dataclass
class Turn:
    """A request that the engine will take. messages: the conversation so far, without instructions."""

    body: ResponsesRequest
    chat: ChatRequest
    work: ServeContext
    messages: Messages
    key: str


class ResponsesServing(ItemsServing):
    def __init__(self, chat: ChatServing) -> None:
        super().__init__(chat)
        self.store = ResponseStore()

    async def work(self, body: ResponsesRequest, key: str) -> Turn:
        """Raises APIError: what is wrong with the request, by the field's name."""
        messages = body.messages()
        if body.previous_response_id is not None:
            before = self.store.get(key, body.previous_response_id, "previous_response_id")
            messages = [*before.messages, *messages]
        with naming(_NAMES):
            chat = body.as_chat(messages)
            return Turn(body, chat, await self.chat.work(chat, key), messages, key)

    def begin(self, turn: Turn, output: RequestOutput) -> tuple[OutputItems, dict[str, Any], list[Event]]:
        response = self._response(turn.body)
        events = [{"type": f"response.{kind}", "response": response} for kind in _BEGINS]
        return OutputItems(self.chat.reader(turn.chat, output)), response, events

    def finish(
        self, turn: Turn, items: OutputItems, answer: dict[str, Any], output: RequestOutput
    ) -> tuple[dict[str, Any], list[Event]]:
        events = list(items.end(status := _status(output)))
        ended = self._ended(turn, answer, items, output)
        return ended, [*events, {"type": f"response.{status}", "response": ended}]

    def numbered(self, event: Event, number: int) -> Event:
        return {**event, "sequence_number": number}

    def _response(self, body: ResponsesRequest) -> dict[str, Any]:
        """As it is before the first token."""
        given = body.model_dump(by_alias=True)
        fields = ("instructions", "max_output_tokens", "temperature", "top_p", "text", "metadata", "truncation")
        return {
            "id": make_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "model": self.serving.model_name,
            "status": "in_progress",
            "output": [],
            "error": None,
            "incomplete_details": None,
            "usage": None,
            "tools": given["tools"] or [],
            "tool_choice": given["tool_choice"] or "auto",
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "store": body.store is not False,
            **{name: given[name] for name in fields},
        }

    def _ended(self, turn: Turn, response: dict[str, Any], items: OutputItems, output: RequestOutput) -> dict[str, Any]:
        """The response as it is at the end, which is stored unless the request says no."""
        status, used = _status(output), usage([output])
        messages = to_messages(items.items)
        thoughts = "".join(message.get("reasoning", "") for message in messages)
        counted = len(self.serving.tokenizer.tokenize(thoughts)) if thoughts and self.serving.tokenizer else 0
        ended = {
            **response,
            "status": status,
            "incomplete_details": None if status == "completed" else {"reason": "max_output_tokens"},
            "output": items.items,
            "usage": {
                "input_tokens": used["prompt_tokens"],
                "input_tokens_details": used["prompt_tokens_details"],
                "output_tokens": used["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": counted},
                "total_tokens": used["total_tokens"],
            },
        }
        if turn.body.store is not False:
            self.store.put(turn.key, response["id"], encoded(ended, at_once), [*turn.messages, *messages])
        return ended


def _status(output: RequestOutput) -> str:
    return "completed" if output.outputs[0].finish_reason == "stop" else "incomplete"
