"""Reasoning parsers: which part of a text are thoughts, and a grammar that leaves room for them before a form.

    "<think>The user asks"  ──▶  thoughts  "The user asks"
    ".</think>[{"           ──▶  thoughts  "."              content  "[{"

Whether a model thinks can be read off the end of its prompt, where a chat template begins the thoughts, or ends them at
once. Where it does neither, the two kinds of models differ:

    qwen3         thinks if its text begins with <think>: the form holds from the first token if it does not
    deepseek_r1   thinks, whether or not it writes <think>

vLLM: reasoning/basic_parsers.py, reasoning/qwen3_engine_reasoning_parser.py, reasoning/deepseek_r1_reasoning_parser.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Literal

from folovllm.serving.tool_parsers.abstract_tool_parser import overlap
from folovllm.structured_outputs import JSON_OPTIONS, StructuredOutputsParams, as_lark, kind_and_text

Thinks = Literal["no", "maybe", "yes"]
BEGIN, END = "<think>", "</think>"
_OTHERWISE: dict[str, Thinks] = {"qwen3": "maybe", "deepseek_r1": "yes"}
"""By a parser's name: what the model does where the prompt says nothing."""


def parser_of_template(template: str) -> str | None:
    """The name of the parser for models with this chat template, as far as it is recognised."""
    if END not in template:
        return None
    return "deepseek_r1" if "<｜Assistant｜>" in template else "qwen3"


def whether_it_thinks(name: str, prompt: str, continued: str | None = None) -> Thinks:
    """continued: the message that the answer goes on with, where it begins no new one."""
    if continued is not None:
        return "yes" if continued.rfind(BEGIN) > continued.rfind(END) else "no"
    end = prompt[-99:].rstrip()
    return "yes" if end.endswith(BEGIN) else "no" if end.endswith(END) else _OTHERWISE[name]


class ReasoningParser:
    """Takes a text piece by piece. What may be the beginning of a marker waits for more."""

    def __init__(self, thinks: Thinks) -> None:
        self._thinks, self._kept = thinks, ""
        self._space: list[str] = []  # before the first word
        self._has_begun = self.is_over = thinks == "no"

    def read(self, text: str, *, is_final: bool) -> tuple[str, str]:
        """(thoughts, content) that the text so far gained by some more."""
        text, self._kept = self._kept + text, ""
        if not self._has_begun:
            begin = text.lstrip()
            self._space.append(text[: len(text) - len(begin)])
            if BEGIN.startswith(begin) and begin != BEGIN and not is_final:
                self._kept = begin
                return "", ""
            self._has_begun, has_marker = True, begin.startswith(BEGIN)
            self.is_over = self._thinks == "maybe" and not has_marker
            text = begin.removeprefix(BEGIN) if has_marker else "".join([*self._space, begin])
        if self.is_over:
            return "", text
        thoughts, marker, content = text.partition(END)
        self.is_over = bool(marker)
        if not marker and not is_final and (size := overlap(text, END)):
            thoughts, self._kept = text[:-size], text[-size:]
        return thoughts, content


def after_thoughts(form: StructuredOutputsParams, thinks: Thinks, tokens: Collection[str]) -> StructuredOutputsParams:
    """The same form, after thoughts.

    tokens: those that the tokenizer has added. As one of them, a marker is no text to a grammar."""
    if thinks == "no":
        return form
    if END in tokens:
        thoughts = f"{BEGIN}{'?' * (thinks == 'yes')} TEXT {END}"
        rules = "TEXT: /(.|\\n)*/\n"
    else:
        thoughts = f'"{BEGIN}"{"?" * (thinks == "yes")} thoughts'
        rules = "thoughts[lazy]: /(.|\\n)*<\\/think>/\n"
    start = f"start: {thoughts} form" if thinks == "yes" else f"start: ({thoughts})? form"
    return StructuredOutputsParams(grammar=f"%llguidance {{}}\n{start}\n{rules}form: {_as_rule(form)}\n")


def _as_rule(form: StructuredOutputsParams) -> str:
    """A form that has been compiled alone, as the body of a rule in Lark."""
    kind, text = kind_and_text(form)
    if kind == "grammar":
        return f"%lark {{\n{as_lark(text)}\n}}"
    if kind == "regex":
        one_line = text.replace("\n", "\\n")
        return "/" + re.sub(r"(\\.)|/", lambda found: found[1] or "\\/", one_line) + "/"
    if kind == "choice":
        return " | ".join(json.dumps(each) for each in json.loads(text))
    schema = json.loads(text)
    return f"%json {json.dumps({**(schema if isinstance(schema, dict) else {}), 'x-guidance': JSON_OPTIONS})}"
