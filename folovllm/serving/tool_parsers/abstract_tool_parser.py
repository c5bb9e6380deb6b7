"""ToolParser, the base: a model's text goes in piece by piece; content and calls come out as far as they are certain.

    "I will look. <tool_"     ──▶  "I will look."        the rest may be a marker
    "call>{"name": "weather"" ──▶  call 0, weather
    ", "arguments": {"city"…  ──▶  call 0, {"city"…

A whole answer is a text that comes in one piece: streamed or not, a client gets the same calls.

vLLM: tool_parsers/abstract_tool_parser.py
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from folovllm.serving.tool_parsers.json_call import JsonCall


@dataclass(slots=True)
class DeltaToolCall:
    """What a call gained. Its first piece has its name, and no arguments."""

    index: int
    arguments: str = ""
    name: str | None = None


Pieces = list[str | DeltaToolCall]
"""Content, and what calls gained, in the order of the text."""


class ToolParser(ABC):
    """A subclass has a method for each state. It takes what it understands from `self.buffer` and says whether it got
    on; where it did not, it waits for more text.

    Args:
        tools: schema of the arguments, by the function's name.
    """

    needs_special_tokens = False
    """Whether its markers are special tokens, which texts leave out by default."""
    keeps_what_is_no_call = True
    """Whether what began like a call and is none is content. No part of a form that holds a model to calls is."""

    def __init__(self, tools: Mapping[str, dict[str, Any]]) -> None:
        self.tools = tools
        self.buffer, self.is_final = "", False
        self.state: Callable[[], bool] = self.start
        self.num_calls = 0
        self.is_in_call = False
        """Whether the newest call has not come to its end."""
        self._pieces: Pieces = []
        self._call, self._written, self._is_named = JsonCall(), "", False
        self._is_after_call = False

    @abstractmethod
    def start(self) -> bool: ...

    @staticmethod
    def make_id() -> str:
        return f"call_{uuid.uuid4().hex[:24]}"

    @classmethod
    def strict_form(
        cls, tools: Mapping[str, dict[str, Any]], strict: Collection[str], tokens: Collection[str] = ()
    ) -> str | None:
        """A grammar of texts in which each call is of one of the tools, and keeps the schema if it is a strict one's.
        None: there is none for this format.

        tokens: those that the tokenizer has added. As one of them, a marker is no text to a grammar."""
        return None

    def extract_tool_calls_streaming(self, delta_text: str, *, is_final: bool = False) -> Pieces:
        """What has become certain with more text. Is it the last, nothing is kept back."""
        self.buffer, self.is_final, self._pieces = self.buffer + delta_text, is_final, []
        while self.state():
            pass
        return self._pieces

    def extract_tool_calls(self, model_output: str) -> tuple[str, list[tuple[str, str]]]:
        """(content, [(name, arguments)]) of a whole text."""
        content, calls = "", list[tuple[str, str]]()
        for piece in self.extract_tool_calls_streaming(model_output, is_final=True):
            if isinstance(piece, str):
                content += piece
            elif piece.name is not None:
                calls.append((piece.name, ""))
            else:
                calls[piece.index] = calls[piece.index][0], calls[piece.index][1] + piece.arguments
        return content, calls

    # What parsers are made of.

    def content(self, text: str) -> None:
        """White space after a call is part of the format."""
        text = text.lstrip() if self._is_after_call else text
        if text:
            self._pieces.append(text)
            self._is_after_call = False

    def content_until(self, *markers: str) -> str | None:
        """The marker that was found, with white space before it, and taken. What may be the beginning of it waits."""
        found = [(at, marker) for marker in markers if (at := self.buffer.find(marker)) >= 0]
        if found:
            at, marker = min(found)
            end, begin = at + len(marker), len(self.buffer[:at].rstrip())
            self.content(self.buffer[:begin])
            marker, self.buffer = self.buffer[begin:end], self.buffer[end:]
            return marker
        end = len(self.buffer)
        if not self.is_final:
            end -= max(overlap(self.buffer, marker) for marker in markers)
            end = len(self.buffer[:end].rstrip())
        self.content(self.buffer[:end])
        self.buffer = self.buffer[end:]
        return None

    def comes(self, marker: str) -> bool | None:
        """Whether the marker is next, after white space, and take it. None: that cannot be said yet."""
        text = self.buffer.lstrip()
        if text.startswith(marker):
            self.buffer = text[len(marker) :]
            return True
        return None if marker.startswith(text) and not self.is_final else False

    def announce(self, name: str) -> None:
        self._pieces.append(DeltaToolCall(self.num_calls, name=name))
        self.num_calls += 1
        self._is_after_call = self.is_in_call = True

    def argue(self, arguments: str) -> None:
        """More of the newest call's arguments."""
        if arguments:
            self._pieces.append(DeltaToolCall(self.num_calls - 1, arguments))

    def begin_call(self, written: str = "", name: str | None = None) -> None:
        """written: what has been taken for it already, and is content if it is no call after all."""
        self._call, self._written, self._is_named = JsonCall(name), written, False

    def no_call(self, written: str) -> None:
        """At the end of the text, what began like a call is content."""
        if self.is_final:
            self.content(written + self.buffer)
            self.buffer = ""

    def read_call(self, after: Callable[[], bool], otherwise: Callable[[], bool], *, known: bool = False) -> bool:
        """A state: the call that begin_call() began, to its end. known: a function that is not there is no call."""
        call = self._call
        size = call.read(self.buffer)
        self._written, self.buffer = self._written + self.buffer[:size], self.buffer[size:]
        fails = call.has_failed or (known and call.name is not None and call.name not in self.tools)
        if not self._is_named and call.name is not None and not (known and fails):
            self._is_named = True
            self.announce(call.name)
        if self._is_named:
            self.argue(call.fresh())
            self.is_in_call = not call.is_over
        elif (fails or self.is_final) and self.keeps_what_is_no_call:
            self.content(self._written)
        if call.is_over or fails:
            self.state = otherwise if fails else after
        return call.is_over or fails or bool(self.buffer)


def overlap(text: str, marker: str) -> int:
    """How much of the marker the text ends with."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:size])), 0)
