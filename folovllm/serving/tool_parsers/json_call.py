"""A tool call as JSON, parsed as it comes: its name, and its arguments as the model wrote them.

    read   {"name": "weather", "arguments": {"city": "Par     name  weather     fresh  {"city": "Par
    read   is"}}                                              is_over           fresh  is"}

Arguments are handed on character by character and not decoded, so that a client sees them grow, and what max_tokens has
cut stays as it is.

vLLM: tool_parsers/utils.py (partial_json_loads)
"""

from __future__ import annotations

import json

ARGUMENTS = ("arguments", "parameters")


class JsonCall:
    """Args: name: given where the text is that of the arguments alone."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self.is_over = self.has_failed = False
        self._is_bare = name is not None
        self._depth = 1 if self._is_bare else 0  # 1 is between keys and values of the call itself
        self._key = ARGUMENTS[0] if self._is_bare else None
        self._part = ""  # of a key, or of a value that is not passed on as it comes
        self._fresh = ""
        self._passes_on = self._has_arguments = False
        self._in_text = self._is_escaped = False

    def read(self, text: str) -> int:
        """How many characters of `text` belong to the call: all of them, or as far as its name is known, it is over or
        has failed. A reader so does the same at the same place, however a text is cut."""
        name = self.name
        for place, char in enumerate(text):
            self._take(char)
            if self.is_over or self.has_failed or self.name is not name:
                return place + 1
        return len(text)

    def fresh(self) -> str:
        """What the arguments gained since this was asked last; nothing before the name is known."""
        if self.name is None:
            return ""
        fresh, self._fresh = self._fresh, ""
        return fresh

    def _take(self, char: str) -> None:
        if self._in_text:
            self._add(char)
            self._in_text = self._is_escaped or char != '"'
            self._is_escaped = char == "\\" and not self._is_escaped
        elif self._depth == 0:
            self._depth, self.has_failed = int(char == "{"), char != "{" and not char.isspace()
        elif self._depth > 1 or not char.isspace():
            self._take_between_texts(char)

    def _take_between_texts(self, char: str) -> None:
        self._in_text = char == '"'
        if char in "{[":
            begins = self._depth == 1 and not self._part and not self._has_arguments
            self._passes_on |= begins and self._key in ARGUMENTS
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        if self._depth == 0 or (self._depth == 1 and char in ":,"):
            self._end_part(char)
        else:
            self._add(char)
        if self._is_bare:
            self.has_failed = not self._passes_on
            self.is_over = self._depth == 1

    def _add(self, char: str) -> None:
        if self._passes_on:
            self._fresh += char
        else:
            self._part += char

    def _end_part(self, char: str) -> None:
        part, self._part = self._part, ""
        try:
            value = json.loads(part) if part else None
        except (ValueError, RecursionError):
            self.has_failed = True
            return
        if char == ":":
            self._key = value
            return
        if self._key == "name" and isinstance(value, str) and self.name is None:
            self.name = value
        elif self._key in ARGUMENTS and not self._has_arguments:
            # Some models write the arguments as a text that holds JSON, as OpenAI's interface has them.
            given = value if isinstance(value, str) else "{}" if value is None else part
            self._fresh += "" if self._passes_on else given
            self._has_arguments, self._passes_on = True, False
        self._key = None
        if self._depth == 0:
            self._fresh += "" if self._has_arguments else "{}"
            self.is_over, self.has_failed = self.name is not None, self.name is None
