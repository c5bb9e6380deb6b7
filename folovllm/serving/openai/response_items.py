"""Output items of a response (POST /v1/responses), as they grow, and their events.

    "I look."   message         added, part added, delta …, text done, part done, item done
    a call      function_call   added, arguments' delta …, arguments done, item done
    thoughts    reasoning       as a message

A whole response is one that grew in one piece: streamed or not, its items are the same.

vLLM: entrypoints/openai/responses/streaming_events.py
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from folovllm.serving.openai.tool_use import DeltaReasoning, MessageReader, Piece
from folovllm.serving.tool_parsers.abstract_tool_parser import DeltaToolCall

Event = dict[str, Any]
_TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}


class OutputItems:
    """One item is open at a time: with a piece of another kind, or of the next call, it ends."""

    def __init__(self, reader: MessageReader) -> None:
        self.reader = reader
        self.items: list[dict[str, Any]] = []
        self._is_open, self._call, self._texts = False, -1, list[str]()

    def add(self, piece: Piece) -> Iterator[Event]:
        if isinstance(piece, DeltaToolCall):
            kind, text = "function_call", piece.arguments
        elif isinstance(piece, DeltaReasoning):
            kind, text = "reasoning", piece.text
        else:
            kind, text = "message", piece
        is_next_call = isinstance(piece, DeltaToolCall) and piece.index != self._call
        if not self._is_open or self.items[-1]["type"] != kind or is_next_call:
            yield from self.close()
            if isinstance(piece, DeltaToolCall):
                self._call = piece.index
            yield from self._open(kind, getattr(piece, "name", None))
        if text:
            self._texts.append(text)
            yield {**self._growing("delta"), "delta": text}

    def close(self, status: str = "completed") -> Iterator[Event]:
        if not self._is_open:
            return
        item, text, self._is_open = self.items[-1], "".join(self._texts), False
        item["status"] = status
        if item["type"] == "function_call":
            item["arguments"] = text
            yield {**self._growing("done"), "name": item["name"], "arguments": text}
        else:
            item["content"] = [_part(item["type"], text)]
            yield {**self._growing("done"), "text": text}
            yield {"type": "response.content_part.done", **self._place(), "part": item["content"][0]}
        yield {"type": "response.output_item.done", "output_index": self._place()["output_index"], "item": item}

    def end(self, status: str) -> Iterator[Event]:
        """The last of them, which there is even where nothing was said."""
        if not self.items:
            yield from self._open("message", None)
        yield from self.close(status)

    def _open(self, kind: str, name: str | None) -> Iterator[Event]:
        item: dict[str, Any] = {"type": kind, "status": "in_progress"}
        if kind == "function_call":
            item |= {"id": make_id("fc"), "call_id": self.reader.make_id(), "name": name, "arguments": ""}
        elif kind == "reasoning":
            item |= {"id": make_id("rs"), "summary": [], "content": []}
        else:
            item |= {"id": make_id("msg"), "role": "assistant", "content": []}
        self.items.append(item)
        self._is_open, self._texts = True, []
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": {**item}}
        if kind in _TEXTS:
            yield {"type": "response.content_part.added", **self._place(), "part": _part(kind, "")}

    def _growing(self, what: str) -> Event:
        kind = self.items[-1]["type"]
        name = _TEXTS.get(kind, "function_call_arguments")
        return {"type": f"response.{name}.{what}", **self._place(), **({"logprobs": []} if kind == "message" else {})}

    def _place(self) -> dict[str, Any]:
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return place if self.items[-1]["type"] == "function_call" else {**place, "content_index": 0}


def _part(kind: str, text: str) -> dict[str, Any]:
    part = {"type": _TEXTS[kind], "text": text}
    return {**part, "annotations": [], "logprobs": []} if kind == "message" else part


def make_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
