"""Output items of a response (POST /v1/responses), as they grow, and their events.

    "I look."   message         added, part added, delta …, text done, part done, item done
    a call      function_call   added, arguments' delta …, arguments done, item done
    thoughts    reasoning       as a message

vLLM: entrypoints/openai/responses/streaming_events.py
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from folovllm.serving.openai.growing import Event, Growing

_TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}


class OutputItems(Growing):
    kinds = ("message", "reasoning", "function_call")

    def _delta(self, text: str) -> Event:
        return {**self._growing("delta"), "delta": text}

    def _close(self, item: dict[str, Any], text: str, status: str) -> Iterator[Event]:
        item["status"] = status
        if item["type"] == "function_call":
            item["arguments"] = text
            yield {**self._growing("done"), "name": item["name"], "arguments": text}
        else:
            item["content"] = [_part(item["type"], text)]
            yield {**self._growing("done"), "text": text}
            yield {"type": "response.content_part.done", **self._place(), "part": item["content"][0]}
        yield {"type": "response.output_item.done", "output_index": self._place()["output_index"], "item": item}

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
