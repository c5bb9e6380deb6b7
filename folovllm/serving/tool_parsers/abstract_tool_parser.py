"""ToolParser, the base: a model's text goes in piece by piece; content and calls come out as far as they are certain.

    "I will look. <tool_"     ──▶  "I will look."        the rest may be a marker
    "call>{"name": "weather"" ──▶  call 0, weather
    ", "arguments": {"city"…  ──▶  call 0, {"city"…

A whole answer is a text that comes in one piece: streamed or not, a client gets the same calls.

vLLM: tool_parsers/abstract_tool_parser.py
"""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from folovllm.serving.tool_parsers.json_call import JsonCall

SPACE = re.compile(r"\s*")


@dataclass(slots=True)
class DeltaToolCall:
    """What a call gained. Its first piece has its name, and no arguments."""

    index: int
    arguments: str = ""
    name: str | None = None


Pieces = list[str | DeltaToolCall]
"""Content, and what calls gained, in the order of the text."""


class ToolParser(ABC):
    """A subclass has a method for each state. It takes what it understands of `text`, from `at` on, and says whether it
    got on; where it did not, it waits for more text.

    No character is looked at a second time because more have come: what waits in `text` is at most the beginning of a
    marker, and all else that cannot be decided on waits in lists.

    Args:
        tools: schema of the arguments, by the function's name.
    """

    needs_special_tokens = False
    """Whether its markers are special tokens, which texts leave out by default."""
    keeps_what_is_no_call = True
    """Whether what began like a call and is none is content. No part of a form that holds a model to calls is."""

    def __init__(self, tools: Mapping[str, dict[str, Any]]) -> None:
        self.tools = tools
        self.text, self.at, self.is_final = "", 0, False
        self.state: Callable[[], bool] = self.start
        self.num_calls = 0
        self.is_in_call = False
        """Whether the newest call has not come to its end."""
        self._pieces: Pieces = []
        self._space: list[str] = []  # what was read before `at`, and is content or part of a marker
        self._part: list[str] = []  # of what until() will return
        self._call, self._written, self._is_named = JsonCall(), [""], False
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
        self.text, self.at, self.is_final, self._pieces = self.text[self.at :] + delta_text, 0, is_final, []
        while self.state():
            pass
        return self._pieces

    def extract_tool_calls(self, model_output: str) -> tuple[str, list[tuple[str, str]]]:
        """(content, [(name, arguments)]) of a whole text."""
        content, calls = list[str](), list[tuple[str, list[str]]]()
        for piece in self.extract_tool_calls_streaming(model_output, is_final=True):
            if isinstance(piece, str):
                content.append(piece)
            elif piece.name is not None:
                calls.append((piece.name, []))
            else:
                calls[piece.index][1].append(piece.arguments)
        return "".join(content), [(name, "".join(arguments)) for name, arguments in calls]

    # What parsers are made of.

    def content(self, text: str) -> None:
        """White space after a call is part of the format."""
        text = text.lstrip() if self._is_after_call else text
        if text:
            self._pieces.append(text)
            self._is_after_call = False

    def content_until(self, *markers: str) -> str | None:
        """The marker that was found, with white space before it, and taken. What may be the beginning of it waits."""
        found = any_of(*markers).search(self.text, self.at)
        end = found.start() if found else len(self.text)
        if not (found or self.is_final):
            end -= max(overlap(self.text, marker, self.at) for marker in markers)
        text = self.text[self.at : end]
        said = text.rstrip()
        if said:
            self.content(self.take_space() + said)
        self._space.append(text[len(said) :])
        self.at = found.end() if found else end
        if not found and self.is_final:
            self.content(self.take_space())
        return self.take_space() + found[0] if found else None

    def take_space(self) -> str:
        space, self._space = "".join(self._space), []
        return space

    def skip(self, pattern: re.Pattern[str]) -> str:
        """What fits the pattern, which may be nothing, and is taken."""
        found = pattern.match(self.text, self.at)
        self.at, begin = found.end() if found else self.at, self.at
        return self.text[begin : self.at]

    def skip_space(self) -> None:
        self._space.append(self.skip(SPACE))

    def comes(self, marker: str) -> bool | None:
        """Whether the marker is next, after white space, and take it. None: that cannot be said yet."""
        self.skip_space()
        text = self.text[self.at : self.at + len(marker)]
        if text == marker:
            self._space, self.at = [], self.at + len(marker)
            return True
        return None if marker.startswith(text) and not self.is_final else False

    def until(self, marker: str) -> str | None:
        """What comes before the marker, which is taken. None: it has not come, and what has waits."""
        found = self.text.find(marker, self.at)
        end = found if found >= 0 else len(self.text) - (0 if self.is_final else overlap(self.text, marker, self.at))
        self._part += [self.take_space(), self.text[self.at : end]]
        self.at = end if found < 0 else end + len(marker)
        if found < 0:
            return None
        part, self._part = "".join(self._part), []
        return part

    def take_rest(self) -> str:
        rest, self.at = self.take_space() + self.text[self.at :], len(self.text)
        return rest

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
        self._call, self._written, self._is_named = JsonCall(name), [written, self.take_space()], False

    def no_call(self, written: str) -> None:
        """At the end of the text, what began like a call is content: also what until() has read for it."""
        if self.is_final:
            self.content(written + "".join(self._part))

    def read_call(self, after: Callable[[], bool], otherwise: Callable[[], bool], *, known: bool = False) -> bool:
        """A state: the call that begin_call() began, to its end. known: a function that is not there is no call."""
        call, begin = self._call, self.at
        self.at = call.read(self.text, begin, is_final=self.is_final)
        fails = call.has_failed or (known and call.name is not None and call.name not in self.tools)
        if not self._is_named:
            self._written.append(self.text[begin : self.at])
        if not self._is_named and call.name is not None and not (known and fails):
            self._is_named = True
            self.announce(call.name)
        if self._is_named:
            self.argue(call.fresh())
            self.is_in_call = not call.is_over
        elif (fails or self.is_final) and self.keeps_what_is_no_call:
            self.content("".join(self._written))
        if call.is_over or fails:
            self.state = otherwise if fails else after
        return call.is_over or fails or begin < self.at < len(self.text)


@cache
def any_of(*markers: str) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, markers)))


def overlap(text: str, marker: str, at: int = 0) -> int:
    """How much of the marker the text, from `at` on, ends with."""
    most = min(len(marker) - 1, len(text) - at)
    return next((size for size in range(most, 0, -1) if text.endswith(marker[:size])), 0)
