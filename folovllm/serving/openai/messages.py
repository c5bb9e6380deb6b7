"""POST /v1/messages: Anthropic's interface. It becomes a chat request, and the answer becomes blocks.

    message_start ─ (content_block_start ─ content_block_delta … ─ content_block_stop) … ─ message_delta ─ message_stop

vLLM: entrypoints/anthropic/serving.py
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from folovllm.outputs import RequestOutput
from folovllm.serving.openai.background import at_once
from folovllm.serving.openai.bodies import BodyRoute
from folovllm.serving.openai.errors import APIError, failed, naming
from folovllm.serving.openai.formatting import EncodedResponse, encoded, usage
from folovllm.serving.openai.growing import Event, Growing, ItemsServing, as_bytes
from folovllm.serving.openai.messages_protocol import CountTokensRequest, MessagesRequest
from folovllm.serving.openai.protocol import ChatRequest
from folovllm.serving.openai.response_items import make_id
from folovllm.serving.openai.serving_chat import ChatServing
from folovllm.serving.openai.serving_engine import ServeContext, arguments_of
from folovllm.serving.openai.streams import Burst, EventStream

# How a chat request calls what is wrong, and how this one does.
_NAMES = {
    "stop": "stop_sequences", "response_format": "output_config.format", "reasoning_effort": "output_config.effort",
    "tool_choice.function.name": "tool_choice.name",
}  # fmt: skip
_ERRORS = {413: "request_too_large", 500: "api_error", 503: "overloaded_error"}
_DELTAS = {
    "text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}  # fmt: skip


class MessagesError(APIError):
    """In Anthropic's shape."""

    @classmethod
    def of(cls, error: Exception) -> MessagesError:
        known = failed(error)
        return cls(known.status, known.message, param=known.param, headers=dict(known.headers or {}))

    def body(self) -> dict[str, Any]:
        problem = super().body()["error"]
        kind = _ERRORS.get(self.status, problem["type"])
        return {"type": "error", "error": {"type": kind, "message": problem["message"]}}


class MessagesRoute(BodyRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def shaped(request: Request) -> Response:
            try:
                return await handle(request)
            except Exception as error:
                raise MessagesError.of(error) from error

        return shaped


class MessageStream(EventStream):
    end = b""


class Blocks(Growing):
    kinds = ("text", "thinking", "tool_use")

    def _open(self, kind: str, name: str | None) -> Iterator[Event]:
        block: dict[str, Any] = {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {})
        if kind == "tool_use":
            block = {"type": kind, "id": self.reader.make_id(), "name": name, "input": {}}
        self.items.append(block)
        yield {"type": "content_block_start", "index": len(self.items) - 1, "content_block": {**block}}

    def _delta(self, text: str) -> Event:
        kind, field = _DELTAS[self.items[-1]["type"]]
        return self._gained({"type": kind, field: text})

    def _gained(self, delta: dict[str, str]) -> Event:
        return {"type": "content_block_delta", "index": len(self.items) - 1, "delta": delta}

    def _close(self, item: dict[str, Any], text: str, status: str) -> Iterator[Event]:
        if item["type"] == "tool_use":
            item["input"] = arguments_of(text)
        else:
            item[item["type"]] = text
        if item["type"] == "thinking":
            item["signature"] = make_id("sig")  # clients send none back without it
            yield self._gained({"type": "signature_delta", "signature": item["signature"]})
        yield {"type": "content_block_stop", "index": len(self.items) - 1}


@dataclass
class Turn:
    """A request that the engine will take."""

    chat: ChatRequest
    work: ServeContext


class MessagesServing(ItemsServing):
    async def work(self, body: MessagesRequest, key: str) -> Turn:
        """Raises APIError: what is wrong with the request, by the field's name."""
        with naming(_NAMES):
            chat = body.as_chat()
            return Turn(chat, await self.chat.work(chat, key))

    async def count_tokens(self, body: CountTokensRequest) -> bytes:
        with naming(_NAMES):
            self.serving.check_model(body.model)
            chat = body.as_chat()
            shown = self.chat.tool_use(chat).shown
            prompt = await self.serving.prepare(lambda check: self.serving.conversation(chat, check, shown))
        return encoded({"input_tokens": len(prompt["prompt_token_ids"])}, at_once)

    def begin(self, turn: Turn, output: RequestOutput) -> tuple[Blocks, dict[str, Any], list[Event]]:
        message: dict[str, Any] = {"id": make_id("msg"), "type": "message", "role": "assistant"}
        message["model"] = self.serving.model_name
        message |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(output, 0)}
        return Blocks(self.chat.reader(turn.chat, output)), message, [{"type": "message_start", "message": message}]

    def finish(
        self, turn: Turn, items: Blocks, answer: dict[str, Any], output: RequestOutput
    ) -> tuple[dict[str, Any], list[Event]]:
        events = list(items.end())
        stop, used = _stop(items, output), _usage(output, len(output.outputs[0].token_ids))
        events += [{"type": "message_delta", "delta": stop, "usage": used}, {"type": "message_stop"}]
        return {**answer, "content": items.items, **stop, "usage": used}, events

    async def chunks(self, body: Any, turn: Any) -> AsyncGenerator[Burst, None]:
        has_begun = False
        try:
            async with aclosing(super().chunks(body, turn)) as bursts:
                async for burst in bursts:
                    yield burst
                    has_begun = True
        except Exception as error:
            problem = MessagesError.of(error)
            if not has_begun:
                raise problem from error
            yield Burst(as_bytes(problem.body()), is_last=True)


def message_routes(chat: ChatServing, answered: Callable[..., Awaitable[Response]]) -> APIRouter:
    """answered: see app.py"""
    router, messages = APIRouter(route_class=MessagesRoute, tags=["answers"]), MessagesServing(chat)

    @router.post("/v1/messages", response_model=None)
    async def create_message(body: MessagesRequest, request: Request) -> Response:
        return await answered(messages, body, request, stream=MessageStream)

    @router.post("/v1/messages/count_tokens", response_model=None)
    async def count_tokens(body: CountTokensRequest) -> Response:
        return EncodedResponse(await messages.count_tokens(body))

    return router


def _stop(blocks: Blocks, output: RequestOutput) -> dict[str, Any]:
    choice = output.outputs[0]
    reason, text = blocks.reader.finish_reason(choice), None
    if reason == "length":
        reason = "max_tokens"
    elif reason != "tool_calls" and isinstance(choice.stop_reason, str):
        reason, text = "stop_sequence", choice.stop_reason
    else:
        reason = "tool_use" if any(block["type"] == "tool_use" for block in blocks.items) else "end_turn"
    return {"stop_reason": reason, "stop_sequence": text}


def _usage(output: RequestOutput, generated: int) -> dict[str, int]:
    used, cached = usage([output]), output.num_cached_tokens
    counts = {"input_tokens": used["prompt_tokens"] - cached, "cache_creation_input_tokens": 0}
    return {**counts, "cache_read_input_tokens": cached, "output_tokens": generated}
