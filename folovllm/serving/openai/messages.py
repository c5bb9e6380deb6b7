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
from folovllm.serving.openai.background import Check, at_once
from folovllm.serving.openai.bodies import BodyRoute
from folovllm.serving.openai.errors import APIError, failed, naming
from folovllm.serving.openai.formatting import ChoiceDelta, Chunks, EncodedResponse, encoded, size, usage
from folovllm.serving.openai.messages_protocol import CountTokensRequest, MessagesRequest
from folovllm.serving.openai.protocol import ChatRequest
from folovllm.serving.openai.response_items import Event, make_id
from folovllm.serving.openai.serving_chat import ChatServing
from folovllm.serving.openai.serving_engine import ServeContext, arguments_of
from folovllm.serving.openai.streams import Burst, EventStream, made
from folovllm.serving.openai.tool_use import DeltaReasoning, MessageReader, Piece
from folovllm.serving.tool_parsers.abstract_tool_parser import DeltaToolCall

# How a chat request calls what is wrong, and how this one does.
_NAMES = {
    "stop": "stop_sequences", "response_format": "output_config.format", "reasoning_effort": "output_config.effort",
    "tool_choice.function.name": "tool_choice.name",
}  # fmt: skip
_TYPES = {413: "request_too_large", 500: "api_error", 503: "overloaded_error"}
_TEXTS = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}
"""By a block's kind: the field of its deltas."""
_DELTAS = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}


class MessagesError(APIError):
    """In Anthropic's shape."""

    @classmethod
    def of(cls, error: Exception) -> MessagesError:
        known = failed(error)
        return cls(known.status, known.message, param=known.param, code=known.code, headers=known.headers)

    def body(self) -> dict[str, Any]:
        problem = super().body()["error"]
        kind = _TYPES.get(self.status, problem["type"])
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


class Blocks:
    """The blocks of an answer, as they grow. One is open at a time: a piece of another kind, or of the next call, ends
    it. A whole answer is one that grew in one piece."""

    def __init__(self, reader: MessageReader) -> None:
        self.reader, self.blocks = reader, list[dict[str, Any]]()
        self._is_open, self._call, self._texts = False, -1, list[str]()

    def add(self, piece: Piece) -> Iterator[Event]:
        if isinstance(piece, DeltaToolCall):
            kind, text = "tool_use", piece.arguments
        elif isinstance(piece, DeltaReasoning):
            kind, text = "thinking", piece.text
        else:
            kind, text = "text", piece
        is_next_call = isinstance(piece, DeltaToolCall) and piece.index != self._call
        if not self._is_open or self.blocks[-1]["type"] != kind or is_next_call:
            yield from self.close()
            if isinstance(piece, DeltaToolCall):
                self._call = piece.index
            yield self._open(kind, getattr(piece, "name", None))
        if text:
            self._texts.append(text)
            yield self._delta({"type": _DELTAS[kind], _TEXTS[kind]: text})

    def close(self) -> Iterator[Event]:
        if not self._is_open:
            return
        block, text, self._is_open = self.blocks[-1], "".join(self._texts), False
        if block["type"] == "tool_use":
            block["input"] = arguments_of(text)
        else:
            block[block["type"]] = text
        if block["type"] == "thinking":
            block["signature"] = make_id("sig")
            yield self._delta({"type": "signature_delta", "signature": block["signature"]})
        yield {"type": "content_block_stop", "index": len(self.blocks) - 1}

    def end(self) -> Iterator[Event]:
        """The last of them, which there is even where nothing was said."""
        if not self.blocks:
            yield self._open("text", None)
        yield from self.close()

    def _open(self, kind: str, name: str | None) -> Event:
        block: dict[str, Any] = {"type": kind}
        if kind == "tool_use":
            block |= {"id": self.reader.make_id(), "name": name, "input": {}}
        else:
            block |= {kind: ""} | ({"signature": ""} if kind == "thinking" else {})
        self.blocks.append(block)
        self._is_open, self._texts = True, []
        return {"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": {**block}}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}


@dataclass
class Turn:
    """A request that the engine will take."""

    chat: ChatRequest
    work: ServeContext


class MessagesServing:
    def __init__(self, chat: ChatServing) -> None:
        self.chat, self.serving = chat, chat.serving

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

    async def whole(self, body: MessagesRequest, turn: Turn) -> bytes:
        async with aclosing(self.serving.outputs(turn.work)) as outputs:
            async for _, output in outputs:
                newest = output
        blocks = Blocks(self.chat.reader(turn.chat, newest))
        await self._grow(blocks, [(0, True, newest.outputs[0])])
        list(blocks.end())
        ended = self._message(newest) | {"content": blocks.blocks} | _stop(blocks, newest)
        return encoded(ended | {"usage": _usage(newest)}, at_once)

    async def chunks(self, body: MessagesRequest, turn: Turn) -> AsyncGenerator[Burst, None]:
        blocks, chunks = None, Chunks(1, 1)
        try:
            async with aclosing(self.serving.outputs(turn.work)) as outputs:
                async for place, output in outputs:
                    events: list[Event] = []
                    if blocks is None:
                        blocks = Blocks(self.chat.reader(turn.chat, output))
                        events.append({"type": "message_start", "message": self._message(output)})
                    events += await self._grow(blocks, list(chunks.deltas(place, output)))
                    if events:
                        yield _burst(events)
            assert blocks is not None
            events = list(blocks.end())
            events.append({"type": "message_delta", "delta": _stop(blocks, output), "usage": _usage(output)})
            yield _burst([*events, {"type": "message_stop"}], is_last=True)
        except Exception as error:
            problem = MessagesError.of(error)
            if blocks is None:
                raise problem from error
            yield _burst([problem.body()], is_last=True)

    async def _grow(self, blocks: Blocks, deltas: list[ChoiceDelta]) -> list[Event]:
        def grow(check: Check) -> list[Event]:
            pieces = (piece for _, _, choice in deltas for piece in blocks.reader.pieces(choice))
            return [event for piece in pieces for event in blocks.add(piece)]

        return await made(grow, self.serving.background, size(deltas))

    def _message(self, output: RequestOutput) -> dict[str, Any]:
        """As it is before the first token."""
        return {
            "id": make_id("msg"),
            "type": "message",
            "role": "assistant",
            "model": self.serving.model_name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(output) | {"output_tokens": 0},
        }


def message_routes(
    chat: ChatServing, answered: Callable[..., Awaitable[Response]]
) -> APIRouter:  # answered: see app.py
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
    reason, text = blocks.reader.finish_reason(choice), choice.stop_reason
    if reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if reason != "tool_calls" and isinstance(text, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": text}
    calls = any(block["type"] == "tool_use" for block in blocks.blocks)
    return {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}


def _usage(output: RequestOutput) -> dict[str, Any]:
    used, cached = usage([output]), output.num_cached_tokens
    return {
        "input_tokens": used["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": used["completion_tokens"],
    }


def _burst(events: list[Event], is_last: bool = False) -> Burst:
    lines = (b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encoded(event, at_once)) for event in events)
    return Burst(b"".join(lines), is_last)
