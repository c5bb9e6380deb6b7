"""POST /v1/messages: Anthropic's interface. It becomes a chat request, and the answer becomes blocks.

    message_start ─ (content_block_start ─ content_block_delta … ─ content_block_stop) … ─ message_delta ─ message_stop

vLLM: entrypoints/anthropic/serving.py
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from folovllm.outputs import RequestOutput
from folovllm.serving.openai.background import at_once
from folovllm.serving.openai.errors import naming
from folovllm.serving.openai.formatting import encoded, usage
from folovllm.serving.openai.growing import Event, Growing, ItemsServing, Turn, make_id
from folovllm.serving.openai.messages_protocol import CountTokensRequest, MessagesRequest
from folovllm.serving.openai.serving_chat import ChatServing
from folovllm.serving.openai.tool_use import arguments_of

# How a chat request calls what is wrong, and how this one does.
_NAMES = {
    "stop": "stop_sequences", "response_format": "output_config.format", "reasoning_effort": "output_config.effort",
    "tool_choice.function.name": "tool_choice.name",
}  # fmt: skip
_DELTAS = {
    "text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}  # fmt: skip


class Blocks(Growing):
    kinds = ("text", "thinking", "tool_use")

    def begin(self, output: RequestOutput) -> list[Event]:
        self.answer = {"id": make_id("msg"), "type": "message", "role": "assistant"}
        self.answer["model"] = self.serving.serving.answers_as(self.turn.work)
        self.answer |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(output, 0)}
        return [{"type": "message_start", "message": self.answer}]

    def finish(self, output: RequestOutput) -> list[Event]:
        events, stop = list(self.end()), self._stop(output)
        used = _usage(output, len(output.outputs[0].token_ids))
        self.answer = {**self.answer, "content": self.items, **stop, "usage": used}
        return [*events, {"type": "message_delta", "delta": stop, "usage": used}, {"type": "message_stop"}]

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

    def _close(self, item: dict[str, Any], text: str) -> Iterator[Event]:
        if item["type"] == "tool_use":
            item["input"] = arguments_of(text)
        else:
            item[item["type"]] = text
        if item["type"] == "thinking":
            item["signature"] = make_id("sig")  # clients send none back without it
            yield self._gained({"type": "signature_delta", "signature": item["signature"]})
        yield {"type": "content_block_stop", "index": len(self.items) - 1}

    def _stop(self, output: RequestOutput) -> dict[str, Any]:
        choice = output.outputs[0]
        reason, text = self.reader.finish_reason(choice), None
        if reason == "length":
            reason = "max_tokens"
        elif reason != "tool_calls" and isinstance(choice.stop_reason, str):
            reason, text = "stop_sequence", choice.stop_reason
        else:
            reason = "tool_use" if any(block["type"] == "tool_use" for block in self.items) else "end_turn"
        return {"stop_reason": reason, "stop_sequence": text}


class MessagesServing(ItemsServing):
    def __init__(self, chat: ChatServing) -> None:
        super().__init__(chat, Blocks)

    async def work(self, body: MessagesRequest, key: str) -> Turn:
        """Raises APIError: what is wrong with the request, by the field's name."""
        with naming(_NAMES):
            chat = body.as_chat()
            return Turn(body, chat, await self.chat.work(chat, key))

    async def count_tokens(self, body: CountTokensRequest) -> bytes:
        with naming(_NAMES):
            self.serving.check_model(body.model)
            chat = body.as_chat()
            shown = self.chat.tool_use(chat).shown
            prompt = await self.serving.prepare(lambda check: self.serving.conversation(chat, check, shown))
        return encoded({"input_tokens": len(prompt["prompt_token_ids"])}, at_once)


def _usage(output: RequestOutput, generated: int) -> dict[str, int]:
    used, cached = usage([output]), output.num_cached_tokens
    counts = {"input_tokens": used["prompt_tokens"] - cached, "cache_creation_input_tokens": 0}
    return {**counts, "cache_read_input_tokens": cached, "output_tokens": generated}
