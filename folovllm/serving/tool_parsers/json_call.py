"""A tool call as JSON, read as it comes: its name, and its arguments, which are JSON whatever the model wrote.

    read   {"name": "weather", "arguments": {"city": "Par     name  weather     fresh  {"city": "Par
    read   is"}}                                              is_over           fresh  is"}

Arguments are handed on token by token and not decoded, so that a client sees them grow, and what max_tokens has cut
stays as it is. A key waits until its value begins: where a text is no JSON any more, what was handed on can be closed.
Slips that leave no doubt are mended: Python's constants, a line break inside of a string, a comma too many.

vLLM: tool_parsers/utils.py (partial_json_loads)
"""

from __future__ import annotations

import json
import re

ARGUMENTS = ("arguments", "parameters")
MAX_LEVELS = 128
"""Of what is nested: a client's parser that calls itself ends somewhere beyond."""
_TOKEN = re.compile(r'\s+|[{}\[\]:,"]|[^\s{}\[\]:,"]+')
_IN_STRING = re.compile(r'[^"\\\x00-\x1f]+|"|\\(?:u[0-9a-fA-F]{4}|[^u])|\\u|[\x00-\x1f]')
_CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_ESCAPES = {"\\" + char for char in '"\\/bfnrt'}
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_MEANT = {"True": "true", "False": "false", **dict.fromkeys(("None", "NaN", "Infinity", "-Infinity"), "null")}
_CLOSES = {"{": "}", "[": "]"}


class JsonCall:
    """Args: name: given where the text is that of the arguments alone."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self.is_over = self.has_failed = False
        self._is_bare = name is not None
        self._open = ["}"] if self._is_bare else []  # what closes each level; the first is that of the call itself
        self._expects = "value"  # or an "item" or a "key", in whose place an end may come; a "colon"; what is "next"
        self._key = ARGUMENTS[0] if self._is_bare else None  # of the call itself
        self._in_string = False
        self._word: list[str] = []  # a number or a constant whose end has not come
        self._held: list[str] = []  # comma, key, colon and white space before a value
        self._text: list[str] = []  # a key that has not come to its end
        self._part: list[str] = []  # a value of the call that is not passed on as it comes
        self._fresh: list[str] = []
        self._passes_on = self._has_arguments = False

    def read(self, text: str, at: int, *, is_final: bool) -> int:
        """Where in the text reading came to: its end, the end of the name or of the call, what makes it fail, or an
        escape that is not whole. It is the same place however a text is cut."""
        name = self.name
        while at < len(text) and not self.is_over and not self.has_failed and self.name is name:
            if self._in_string:
                is_cut = _CUT_ESCAPE.fullmatch(text, at) is not None
                if is_cut and not is_final:
                    return at
                found = _IN_STRING.match(text, at)
                end = len(text) if is_cut or found is None else found.end()
                self._take_in_string(text[at:end], is_cut=is_cut)
            else:
                found = _TOKEN.match(text, at)
                end = len(text) if found is None else found.end()
                end = self._take_or_wait(text[at:end], at, end)
            at = end
        if is_final and self._passes_on and not (self.is_over or self.has_failed):
            self._fresh += [*self._held, *self._text, *self._word]
        return at

    def fresh(self) -> str:
        """What the arguments gained since this was asked last; nothing before the name is known."""
        if self.name is None:
            return ""
        fresh, self._fresh = "".join(self._fresh), []
        return fresh

    def _take_or_wait(self, token: str, at: int, end: int) -> int:
        """Where to go on: a token that ends a word is read after it."""
        if token.isspace() or token in '{}[]:,"':
            if self._word:
                word, self._word = "".join(self._word), []
                self._take(word)
                return at
            if token.isspace():
                self._held.append(re.sub(r"[^ \t\n\r]", " ", token))
            else:
                self._take(token)
        else:
            self._word.append(token)
        return end

    def _take(self, token: str) -> None:
        may_begin = self._expects in ("value", "item")
        if (may_begin and token in _CLOSES and 0 < len(self._open) < MAX_LEVELS) or (not self._open and token == "{"):
            if self._open:
                self._begin_value(token)
            self._open.append(_CLOSES[token])
            self._expects = "key" if token == "{" else "item"
        elif not self._open:
            self._fail()
        elif token == self._open[-1] and self._expects in ("key", "item", "next"):
            self._close(token)
        elif may_begin:
            scalar = token if token == '"' or _SCALAR.fullmatch(token) else _MEANT.get(token)
            if scalar is None:
                self._fail()
                return
            self._begin_value(scalar)
            self._in_string = token == '"'
            if not self._in_string:
                self._end_value()
        elif self._expects == "key" and token == '"':
            self._in_string, self._text = True, [token]
        elif (self._expects, token) in (("colon", ":"), ("next", ",")):
            self._held.append(token)
            self._expects = "value" if token == ":" else "key" if self._open[-1] == "}" else "item"
        else:
            self._fail()

    def _take_in_string(self, token: str, *, is_cut: bool) -> None:
        is_escape = token[0] == "\\" and (is_cut or token in _ESCAPES or len(token) == 6)
        if token[0] < " " or (token[0] == "\\" and not is_escape):
            token = "'" if token == "\\'" else json.dumps(token, ensure_ascii=False)[1:-1]
        if not self._text:
            self._emit(token)
        else:
            self._text.append(token)
        if token != '"':
            return
        self._in_string = False
        if not self._text:
            self._end_value()
            return
        key, self._text, self._expects = "".join(self._text), [], "colon"
        self._held.append(key)
        if len(self._open) == 1:
            self._key = json.loads(key)

    def _emit(self, token: str) -> None:
        sink = self._fresh if self._passes_on else self._part
        sink += [*self._held, token]
        self._held = []

    def _begin_value(self, token: str) -> None:
        if len(self._open) == 1:
            self._held = []
            self._passes_on = token in _CLOSES and self._key in ARGUMENTS and not self._has_arguments
        self._emit(token)

    def _close(self, token: str) -> None:
        self._open.pop()
        if not self._open:
            self._fresh += () if self._has_arguments else ("{}",)
            self.is_over, self.has_failed = self.name is not None, self.name is None
            return
        self._held = [each for each in self._held if each != ","]
        self._emit(token)
        self._end_value()

    def _end_value(self) -> None:
        self._expects = "next"
        if len(self._open) > 1:
            return
        part, self._part = "".join(self._part), []
        if self._key == "name" and self.name is None and part[0] == '"' and _is_text(name := json.loads(part)):
            self.name = name
        elif self._key in ARGUMENTS and not self._has_arguments:
            self._fresh += () if self._passes_on else (_arguments(part),)
            self._has_arguments, self._passes_on, self.is_over = True, False, self._is_bare
        self._key = None

    def _fail(self) -> None:
        """What has been handed on becomes whole, without the value that is none."""
        self.has_failed = True
        self._fresh += self._open[:0:-1] if self._passes_on else () if self._has_arguments else ("{}",)


def _arguments(part: str) -> str:
    """Some models write them as a text that holds JSON, as OpenAI's interface has them."""
    if part == "null":
        return "{}"
    text = json.loads(part) if part[0] == '"' else ""
    inner = JsonCall("")
    end = inner.read(text, 0, is_final=True)
    if inner.is_over and _is_text(text) and not text[end:].strip():
        return inner.fresh()
    return part if text.strip() or part[0] != '"' else "{}"


def _is_text(text: str) -> bool:
    """Whether UTF-8 can hold it: an escape may stand for half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
