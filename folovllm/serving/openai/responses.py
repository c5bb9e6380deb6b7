"""POST /v1/responses: OpenAI's newer interface. It becomes a chat request, and the answer becomes items.

    previous_response_id ─▶ store ─▶ ChatRequest ─▶ ServeContext ─▶ outputs ──▶ items ──▶ one response, or events of it
    input, instructions  ──────────────┘                                    └─▶ store

A stream ends with its last event, and with the [DONE] that all streams of this server have.

vLLM: entrypoints/openai/responses/serving.py, entrypoints/openai/responses/streaming_events.py
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from folovllm.outputs import RequestOutput
from folovllm.serving.openai.background import at_once
from folovllm.serving.openai.errors import APIError, naming
from folovllm.serving.openai.formatting import encoded, usage
from folovllm.serving.openai.growing import Event, Growing, ItemsServing, Turn, make_id
from folovllm.serving.openai.responses_protocol import ResponsesRequest, to_messages
from folovllm.serving.openai.serving_chat import ChatServing

# How a chat request calls what is wrong, and how this one does.
_NAMES = {
    "messages": "input", "max_completion_tokens": "max_output_tokens", "response_format": "text.format",
    "tool_choice.function.name": "tool_choice.name",
}  # fmt: skip
MAX_STORED = 4096
MAX_STORED_SIZE = 2**26
"""Of the answers and conversations that are kept, as JSON: 64 Mi. What was asked for longest ago gives way."""
_TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}

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


class OutputItems(Growing):
    """Their events:

    "I look."   message         added, part added, delta …, text done, part done, item done
    a call      function_call   added, arguments' delta …, arguments done, item done
    thoughts    reasoning       as a message
    """

    kinds = ("message", "reasoning", "function_call")
    serving: ResponsesServing
    status = "completed"

    def begin(self, output: RequestOutput) -> list[Event]:
        body: ResponsesRequest = self.turn.body
        given = body.model_dump(by_alias=True)
        fields = ("instructions", "max_output_tokens", "temperature", "top_p", "text", "metadata", "truncation")
        self.answer = {
            "id": make_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "model": self.serving.serving.answers_as(self.turn.work),
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
        return [{"type": f"response.{kind}", "response": self.answer} for kind in ("created", "in_progress")]

    def finish(self, output: RequestOutput) -> list[Event]:
        """The response is stored unless the request says no."""
        is_whole, used = output.outputs[0].finish_reason == "stop", usage([output])
        self.status = "completed" if is_whole else "incomplete"
        events, messages = list(self.end()), to_messages(self.items)
        thoughts = "".join(message.get("reasoning", "") for message in messages)
        tokenizer = self.serving.serving.tokenizer
        counted = len(tokenizer.tokenize(thoughts)) if thoughts and tokenizer else 0
        self.answer = {
            **self.answer,
            "status": self.status,
            "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
            "output": self.items,
            "usage": {
                "input_tokens": used["prompt_tokens"],
                "input_tokens_details": used["prompt_tokens_details"],
                "output_tokens": used["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": counted},
                "total_tokens": used["total_tokens"],
            },
        }
        if self.turn.body.store is not False:
            said = [*self.turn.messages, *messages]
            self.serving.store.put(self.turn.key, self.answer["id"], encoded(self.answer, at_once), said)
        return [*events, {"type": f"response.{self.status}", "response": self.answer}]

    def _delta(self, text: str) -> Event:
        return {**self._growing("delta"), "delta": text}

    def _close(self, item: dict[str, Any], text: str) -> Iterator[Event]:
        item["status"] = self.status
        if item["type"] == "function_call":
            item["arguments"] = text
            yield {**self._growing("done"), "name": item["name"], "arguments": text}
        else:
            item["content"] = [_part(item["type"], text)]
            yield {**self._growing("done"), "text": text}
            yield {"type": "response.content_part.done", **self._where(), "part": item["content"][0]}
        yield {"type": "response.output_item.done", "output_index": self._where()["output_index"], "item": item}

    def _open(self, kind: str, name: str | None) -> Iterator[Event]:
        item: dict[str, Any] = {"type": kind, "status": "in_progress"}
        if kind == "function_call":
            item |= {"id": make_id("fc"), "call_id": self.reader.make_id(), "name": name, "arguments": ""}
        elif kind == "reasoning":
            item |= {"id": make_id("rs"), "summary": [], "content": []}
        else:
            item |= {"id": make_id("msg"), "role": "assistant", "content": []}
        self.items.append(item)
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": {**item}}
        if kind in _TEXTS:
            yield {"type": "response.content_part.added", **self._where(), "part": _part(kind, "")}

    def _growing(self, what: str) -> Event:
        kind = self.items[-1]["type"]
        name = _TEXTS.get(kind, "function_call_arguments")
        return {"type": f"response.{name}.{what}", **self._where(), **({"logprobs": []} if kind == "message" else {})}

    def _where(self) -> dict[str, Any]:
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return place if self.items[-1]["type"] == "function_call" else {**place, "content_index": 0}


class ResponsesServing(ItemsServing):
    def __init__(self, chat: ChatServing) -> None:
        super().__init__(chat, OutputItems, numbers=True)
        self.store = ResponseStore()

    async def work(self, body: ResponsesRequest, key: str) -> Turn:
        """Raises APIError: what is wrong with the request, by the field's name."""
        messages = body.messages()
        if body.previous_response_id is not None:
            before = self.store.get(key, body.previous_response_id, "previous_response_id")
            messages = [*before.messages, *messages]
        with naming(_NAMES):
            chat = body.as_chat(messages)
            return Turn(body, chat, await self.chat.work(chat, key), key, messages)


def _part(kind: str, text: str) -> dict[str, Any]:
    part = {"type": _TEXTS[kind], "text": text}
    return {**part, "annotations": [], "logprobs": []} if kind == "message" else part
