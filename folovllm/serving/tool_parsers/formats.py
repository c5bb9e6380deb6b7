"""Tool parsers by vLLM's names: the format that each model writes, and how its chat template gives it away.

    hermes        text <tool_call>{"name": "f", "arguments": {…}}</tool_call> …        Qwen2.5, Qwen3, Hermes
    qwen3_xml     text <tool_call><function=f><parameter=a>1</parameter></function></tool_call> …       Qwen3-Coder
    mistral       text [TOOL_CALLS][{"name": "f", "arguments": {…}}, …]     or     text [TOOL_CALLS]f[ARGS]{…} …
    llama3_json   {"name": "f", "parameters": {…}}; …                                  Llama 3.1 to 3.3

vLLM: tool_parsers/hermes_tool_parser.py and its neighbours
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Collection, Mapping
from typing import Any

from folovllm.serving.tool_parsers.abstract_tool_parser import ToolParser
from folovllm.serving.tool_parsers.parameters import Parameters
from folovllm.structured_outputs import JSON_OPTIONS

_PARAMETER, _END_OF_CALL = "<parameter=", "</function>"
_BETWEEN_ITEMS, _BETWEEN_CALLS = re.compile(r"[\s,]*"), re.compile(r"[ \n;]*")


class _TaggedCalls(ToolParser):
    def end(self) -> bool:
        if self.comes("</tool_call>") is None:
            return False
        self.state = self.start
        return True


class HermesToolParser(_TaggedCalls):
    @classmethod
    def strict_form(
        cls, tools: Mapping[str, dict[str, Any]], strict: Collection[str], tokens: Collection[str] = ()
    ) -> str | None:
        from llguidance import StructTag

        tags = [
            StructTag(
                trigger="<tool_call>",
                begin=f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": ',
                grammar={**(schema if name in strict else {"type": "object"}), "x-guidance": JSON_OPTIONS},
                end="}\n</tool_call>",
            )
            for name, schema in tools.items()
        ]
        grammar = str(StructTag.to_grammar(tags, assume_special="<tool_call>" in tokens))
        return grammar.replace('\\n</tool_call>"\n', '\\n" </tool_call>\n') if "</tool_call>" in tokens else grammar

    def start(self) -> bool:
        marker = self.content_until("<tool_call>")
        if marker is not None:
            self.begin_call(marker)
            self.state = self.in_call
        return marker is not None

    def in_call(self) -> bool:
        return self.read_call(self.end, self.start)


class Qwen3XMLToolParser(_TaggedCalls):
    """A parameter is handed on when it is whole: its schema says whether it is a text, and must be quoted."""

    def start(self) -> bool:
        marker = self.content_until("<tool_call>", "<function=")  # Qwen3-Coder forgets the first now and then
        if marker is not None:
            self.written = marker
            self.state = self.begin if marker.endswith("<tool_call>") else self.name
        return marker is not None

    def begin(self) -> bool:
        comes = self.comes("<function=")
        if comes:
            self.written += "<function="
            self.state = self.name
        elif comes is False:
            self.content(self.written)
            self.state = self.start
        return comes is not None

    def name(self) -> bool:
        name = self.until(">")
        if name is None:
            self.no_call(self.written)
            return False
        self.announce(name)
        self.schema, self.given = Parameters(self.tools.get(name, {})), set[str]()
        self.state = self.parameters
        return True

    def parameters(self) -> bool:
        self.skip_space()
        mark = self.text[self.at : self.at + len(_PARAMETER)]
        if mark == _PARAMETER:
            self.take_space()
            self.at += len(mark)
            self.state = self.parameter_name
            return True
        if not self.comes(_END_OF_CALL) and (_PARAMETER.startswith(mark) or _END_OF_CALL.startswith(mark)):
            return False  # where the text ends here, the arguments stay open
        self.argue("}" if self.given else "{}")
        self.is_in_call, self.state = False, self.end
        return True

    def parameter_name(self) -> bool:
        name = self.until(">")
        if name is not None:
            self.parameter, self.state = name, self.value
        return name is not None

    def value(self) -> bool:
        text = self.until("</parameter>")
        if text is None:
            return False
        self.state = self.parameters
        if self.parameter not in self.given:  # the first has been handed on
            value = self.schema.as_json(self.parameter, text.removeprefix("\n").removesuffix("\n"))
            self.argue(f"{', ' if self.given else '{'}{json.dumps(self.parameter, ensure_ascii=False)}: {value}")
            self.given.add(self.parameter)
        return True


class CallListParser(ToolParser):
    """[{"name": "f", "parameters": {…}}, …] and nothing else: what tool_choice="required" makes a model write."""

    keeps_what_is_no_call = False

    def start(self) -> bool:
        comes = self.comes("[")
        if comes is not None:
            self.state = self.in_list if comes else self.other
        return comes is not None

    def in_list(self) -> bool:
        self.skip(_BETWEEN_ITEMS)
        ends = self.comes("]")
        if self.at == len(self.text) and not ends:
            return False
        self.begin_call()
        self.state = self.other if ends else self.in_call
        return True

    def in_call(self) -> bool:
        return self.read_call(self.in_list, self.other)

    def other(self) -> bool:
        self.content(self.take_rest())
        return False


class MistralToolParser(CallListParser):
    needs_special_tokens = keeps_what_is_no_call = True

    @staticmethod
    def make_id() -> str:
        """Mistral's chat templates refuse any other form."""
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))

    def start(self) -> bool:
        marker = self.content_until("[TOOL_CALLS]")
        if marker is not None:
            self.written, self.state = marker, self.begin
        return marker is not None

    other = start

    def begin(self) -> bool:
        comes = self.comes("[")
        if comes is not None:
            self.state = self.in_list if comes else self.named
        return comes is not None

    def named(self) -> bool:
        name = self.until("{")
        if name is None:
            self.no_call(self.written)
            return False
        self.begin_call(self.written + name, name.partition("[")[0].strip() or None)
        self.at -= 1
        self.state = self.in_named_call
        return True

    def in_named_call(self) -> bool:
        return self.read_call(self.start, self.start)


class Llama3JsonToolParser(ToolParser):
    """There is no marker that a model must write: an answer that begins like a call of one of the tools is one."""

    needs_special_tokens = True

    def start(self) -> bool:
        tagged = self.comes("<|python_tag|>")
        if tagged is None:
            return False
        self.state = self.in_call if tagged or self.text[self.at : self.at + 1] == "{" else self.plain
        if self.state == self.in_call:
            self.begin_call("<|python_tag|>" if tagged else "")
        return True

    def in_call(self) -> bool:
        return self.read_call(self.between, self.plain, known=True)

    def between(self) -> bool:
        self.skip(_BETWEEN_CALLS)
        if self.at == len(self.text):
            return False
        self.state = self.start
        return True

    def plain(self) -> bool:
        marker = self.content_until("<|python_tag|>")
        if marker is None:
            return False
        self.begin_call(marker)
        self.state = self.in_call
        return True


class ArgumentsParser(ToolParser):
    """The arguments of one function and nothing else: what naming it in tool_choice makes a model write."""

    def start(self) -> bool:
        (name,) = self.tools
        self.announce(name)
        self.state = self.rest
        return True

    def rest(self) -> bool:
        self.argue(self.take_rest())
        return False


# In this order their marks are looked for in a chat template: Qwen3-Coder's has both of the first two.
_FORMATS: dict[str, tuple[type[ToolParser], str]] = {
    "qwen3_xml": (Qwen3XMLToolParser, "<function="),
    "hermes": (HermesToolParser, "<tool_call>"),
    "mistral": (MistralToolParser, "[TOOL_CALLS]"),
    "llama3_json": (Llama3JsonToolParser, '"parameters": dictionary of argument name and its value}'),
}
_SAME = {"qwen3_coder": "qwen3_xml"}
NAMES = (*_FORMATS, *_SAME)


def get_tool_parser(name: str) -> type[ToolParser]:
    return _FORMATS[_SAME.get(name, name)][0]


def parser_of_template(template: str) -> type[ToolParser] | None:
    """The format that a chat template writes calls in, as far as it is recognised."""
    return next((parser for parser, mark in _FORMATS.values() if mark in template), None)
