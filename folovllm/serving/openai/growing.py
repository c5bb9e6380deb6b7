"""A chat's answer in items: those of /v1/responses and the blocks of /v1/messages grow in the same way. vLLM: none"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from itertools import count
from typing import Any

from folovllm.outputs import RequestOutput
from folovllm.serving.openai.background import Check, at_once
from folovllm.serving.openai.formatting import ChoiceDelta, Chunks, encoded, size
from folovllm.serving.openai.serving_chat import ChatServing
from folovllm.serving.openai.streams import Burst, made
from folovllm.serving.openai.tool_use import DeltaReasoning, MessageReader, Piece
from folovllm.serving.tool_parsers.abstract_tool_parser import DeltaToolCall

Event = dict[str, Any]


class Growing(ABC):
    """One item is open at a time: with a piece of another kind, or of the next call, it ends. A whole answer is one
    that grew in one piece: streamed or not, its items are the same."""

    kinds: tuple[str, str, str]
    """Of a text, of thoughts, of a call."""

    def __init__(self, reader: MessageReader) -> None:
        self.reader = reader
        self.items: list[dict[str, Any]] = []
        self._is_open, self._call, self._texts = False, -1, list[str]()

    @abstractmethod
    def _open(self, kind: str, name: str | None) -> Iterator[Event]:
        """Adds an item."""

    @abstractmethod
    def _delta(self, text: str) -> Event:
        """The last item gains `text`."""

    @abstractmethod
    def _close(self, item: dict[str, Any], text: str, status: str) -> Iterator[Event]:
        """The item has all of its text."""

    def add(self, piece: Piece) -> Iterator[Event]:
        kind, text, name = self.kinds[0], piece if isinstance(piece, str) else "", None
        if isinstance(piece, DeltaToolCall):
            kind, text, name = self.kinds[2], piece.arguments, piece.name
        elif isinstance(piece, DeltaReasoning):
            kind, text = self.kinds[1], piece.text
        is_next_call = isinstance(piece, DeltaToolCall) and piece.index != self._call
        if not self._is_open or self.items[-1]["type"] != kind or is_next_call:
            yield from self.close()
            if isinstance(piece, DeltaToolCall):
                self._call = piece.index
            self._is_open, self._texts = True, []
            yield from self._open(kind, name)
        if text:
            self._texts.append(text)
            yield self._delta(text)

    def close(self, status: str = "completed") -> Iterator[Event]:
        if self._is_open:
            self._is_open = False
            yield from self._close(self.items[-1], "".join(self._texts), status)

    def end(self, status: str = "completed") -> Iterator[Event]:
        """The last of them, which there is even where nothing was said."""
        if not self.items:
            self._is_open = True
            yield from self._open(self.kinds[0], None)
        yield from self.close(status)


class ItemsServing(ABC):
    """Serves a body that becomes a chat. A turn has the `chat` and the `work`."""

    def __init__(self, chat: ChatServing) -> None:
        self.chat, self.serving = chat, chat.serving

    @abstractmethod
    def begin(self, turn: Any, output: RequestOutput) -> tuple[Growing, dict[str, Any], list[Event]]:
        """What will grow, the answer before its first token, and the events that say so."""

    @abstractmethod
    def finish(
        self, turn: Any, items: Any, answer: dict[str, Any], output: RequestOutput
    ) -> tuple[dict[str, Any], list[Event]]:
        """The answer at its end, and the events that say so."""

    def numbered(self, event: Event, number: int) -> Event:
        return event

    async def whole(self, _: Any, turn: Any) -> bytes:
        async with aclosing(self.serving.outputs(turn.work)) as outputs:
            async for _, output in outputs:
                newest = output
        items, answer, _ = self.begin(turn, newest)
        await self._grow(items, [(0, True, newest.outputs[0])])
        return encoded(self.finish(turn, items, answer, newest)[0], at_once)

    async def chunks(self, _: Any, turn: Any) -> AsyncGenerator[Burst, None]:
        numbers, chunks, items, answer = count(), Chunks(1, 1), None, dict[str, Any]()

        def burst(events: list[Event], is_last: bool = False) -> Burst:
            return Burst(b"".join(as_bytes(self.numbered(event, next(numbers))) for event in events), is_last)

        async with aclosing(self.serving.outputs(turn.work)) as outputs:
            async for place, output in outputs:
                events: list[Event] = []
                if items is None:
                    items, answer, events = self.begin(turn, output)
                events += await self._grow(items, list(chunks.deltas(place, output)))
                if events:
                    yield burst(events)
        yield burst(self.finish(turn, items, answer, output)[1], is_last=True)

    async def _grow(self, items: Growing, deltas: list[ChoiceDelta]) -> list[Event]:
        def grow(check: Check) -> list[Event]:
            pieces = (piece for _, _, choice in deltas for piece in items.reader.pieces(choice))
            return [event for piece in pieces for event in items.add(piece)]

        return await made(grow, self.serving.background, size(deltas))


def as_bytes(event: Event) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encoded(event, at_once))
