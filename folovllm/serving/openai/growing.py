"""A chat's answer in items: those of /v1/responses and the blocks of /v1/messages grow in the same way. vLLM: none"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from folovllm.outputs import RequestOutput
from folovllm.serving.openai.background import Check, at_once
from folovllm.serving.openai.formatting import ChoiceDelta, Chunks, encoded, size
from folovllm.serving.openai.protocol import ChatRequest
from folovllm.serving.openai.serving_chat import ChatServing
from folovllm.serving.openai.serving_engine import ServeContext
from folovllm.serving.openai.streams import Burst, made
from folovllm.serving.openai.tool_use import DeltaReasoning, MessageReader, Piece
from folovllm.serving.tool_parsers.abstract_tool_parser import DeltaToolCall

Event = dict[str, Any]


@dataclass
class Turn:
    """A body whose chat the engine will take. messages: the conversation so far, without instructions."""

    body: Any
    chat: ChatRequest
    work: ServeContext
    key: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)


class Growing(ABC):
    """One item is open at a time: with a piece of another kind, or of the next call, it ends. A whole answer is one
    that grew in one piece: streamed or not, its items are the same."""

    kinds: tuple[str, str, str]
    """Of a text, of thoughts, of a call."""

    def __init__(self, reader: MessageReader, serving: ItemsServing, turn: Turn) -> None:
        self.reader, self.serving, self.turn = reader, serving, turn
        self.items, self.answer = list[dict[str, Any]](), dict[str, Any]()
        self._place: tuple[str, int] | None = None  # of the open item: its kind, and a call's number
        self._texts = list[str]()

    @abstractmethod
    def begin(self, output: RequestOutput) -> list[Event]:
        """Makes the answer before its first token. The events that say so."""

    @abstractmethod
    def finish(self, output: RequestOutput) -> list[Event]:
        """Makes the answer at its end. The events that say so."""

    @abstractmethod
    def _open(self, kind: str, name: str | None) -> Iterator[Event]:
        """Adds an item."""

    @abstractmethod
    def _delta(self, text: str) -> Event:
        """The last item gains `text`."""

    @abstractmethod
    def _close(self, item: dict[str, Any], text: str) -> Iterator[Event]:
        """The item has all of its text."""

    def add(self, piece: Piece) -> Iterator[Event]:
        place, text, name = (self.kinds[0], 0), piece if isinstance(piece, str) else "", None
        if isinstance(piece, DeltaToolCall):
            place, text, name = (self.kinds[2], piece.index), piece.arguments, piece.name
        elif isinstance(piece, DeltaReasoning):
            place, text = (self.kinds[1], 0), piece.text
        if place != self._place:
            yield from self.close()
            self._place, self._texts = place, []
            yield from self._open(place[0], name)
        if text:
            self._texts.append(text)
            yield self._delta(text)

    def close(self) -> Iterator[Event]:
        if self._place is not None:
            self._place = None
            yield from self._close(self.items[-1], "".join(self._texts))

    def end(self) -> Iterator[Event]:
        """The last of them, which there is even where nothing was said."""
        if not self.items:
            yield from self.add("")
        yield from self.close()


class ItemsServing:
    """Serves a body that becomes a chat. numbers: whether events have one."""

    def __init__(self, chat: ChatServing, grows: type[Growing], *, numbers: bool = False) -> None:
        self.chat, self.serving, self.grows, self.numbers = chat, chat.serving, grows, numbers

    async def whole(self, _: Any, turn: Turn) -> bytes:
        (newest,) = await self.serving.finished(turn.work)
        items = self.grows(self.chat.reader(turn.chat, newest), self, turn)
        items.begin(newest)
        await self._grow(items, [(0, True, newest.outputs[0])])
        items.finish(newest)
        return encoded(items.answer, at_once)

    async def chunks(self, _: Any, turn: Turn) -> AsyncGenerator[Burst, None]:
        places, chunks, items = count(), Chunks(1, 1), None

        def burst(events: list[Event], is_last: bool = False) -> Burst:
            numbered = [{**event, "sequence_number": next(places)} for event in events] if self.numbers else events
            return Burst.of(numbered, is_last)

        async with aclosing(self.serving.outputs(turn.work)) as outputs:
            async for place, output in outputs:
                events: list[Event] = []
                if items is None:
                    items = self.grows(self.chat.reader(turn.chat, output), self, turn)
                    events = items.begin(output)
                events += await self._grow(items, list(chunks.deltas(place, output)))
                if events:
                    yield burst(events)
        assert items is not None  # there is an output, or an error
        yield burst(items.finish(output), is_last=True)

    async def _grow(self, items: Growing, deltas: list[ChoiceDelta]) -> list[Event]:
        def grow(check: Check) -> list[Event]:
            pieces = (piece for _, _, choice in deltas for piece in items.reader.pieces(choice))
            return [event for piece in pieces for event in items.add(piece)]

        return await made(grow, self.serving.background, size(deltas))


def make_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
