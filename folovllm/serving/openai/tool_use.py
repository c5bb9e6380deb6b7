"""Tool calling in a chat: whether the model is shown the tools, what grammar holds it, and which parser reads calls.

    tool_choice     in the prompt   form                                          read by
    "none"          no                                                            no parser: all is content
    "auto"          yes             none; of arguments, where a tool is strict    the parser of the model's own format
    "required"      yes             a list of calls                               CallListParser
    a name          yes             the arguments of that function                ArgumentsParser

vLLM: tool_parsers/utils.py (get_json_schema_from_tools)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from folovllm.outputs import CompletionOutput
from folovllm.serving.openai.protocol import ChatRequest, NamedTool
from folovllm.serving.reasoning import ReasoningParser
from folovllm.serving.tool_parsers.abstract_tool_parser import DeltaToolCall, ToolParser
from folovllm.serving.tool_parsers.formats import ArgumentsParser, CallListParser
from folovllm.structured_outputs import StructuredOutputsParams, closed_schema
from folovllm.utils.checks import did_you_mean

_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}


class ToolUse:
    """Args:
        parser: of the model's format. None where it is not known: calls that it makes unasked are content then.
        tokens: those that the tokenizer has added.

    Raises:
        ValueError: what the body says of tools contradicts itself, or asks for more than the model can do.
    """

    def __init__(self, body: ChatRequest, parser: type[ToolParser] | None, tokens: Collection[str] = ()) -> None:
        tools, choice = body.tools or [], body.tool_choice
        name = choice.function.name if isinstance(choice, NamedTool) else None
        self.schemas = {tool.function.name: tool.function.parameters or _NO_ARGUMENTS for tool in tools}
        self.is_required, self.is_named = choice == "required", name is not None
        self.is_on = bool(tools) and choice != "none"
        self.may_be_several = body.parallel_tool_calls is not False
        if len(self.schemas) < len(tools):
            raise ValueError("tools must have names that differ: a call says no more than the name")
        if self.is_forced and not tools:
            raise ValueError("tool_choice must not ask for a call without tools")
        if name is not None and name not in self.schemas:
            hint = did_you_mean(name, self.schemas) or f"there are {', '.join(self.schemas)}"
            raise ValueError(f"tool_choice.function.name must be one of the tools, got {name!r}; {hint}")
        for field in ("response_format", "structured_outputs"):
            asked = getattr(body, field)
            if self.is_forced and asked is not None and getattr(asked, "type", None) != "text":
                raise ValueError(f"{field} must not be given with a tool_choice that asks for a call: that is a form")
        self.parser: type[ToolParser] | None = parser if self.is_on else None
        if name is not None:
            self.schemas, self.parser = {name: self.schemas[name]}, ArgumentsParser
        elif self.is_required:
            self.parser = CallListParser
        strict = [tool.function.name for tool in tools if tool.function.strict]
        self.strict_form = None
        if self.parser is not None and strict and not self.is_forced:
            closed = {name: closed_schema(schema) for name, schema in self.schemas.items()}
            self.strict_form = self.parser.strict_form(closed, strict, tokens)
            if self.strict_form is None:
                raise ValueError(
                    "tools must not be strict with tool_choice 'auto', for in this model's format calls cannot be held "
                    "to a schema; leave strict out, or ask for a call by 'required' or by name"
                )
        self.shown = tools if self.is_on else None

    @property
    def is_forced(self) -> bool:
        return self.is_required or self.is_named

    def form(self) -> StructuredOutputsParams | None:
        """What a model is held to, whatever it has learnt."""
        if self.is_named:
            (schema,) = self.schemas.values()
            return StructuredOutputsParams(json=closed_schema(schema))
        if not self.is_required:
            return StructuredOutputsParams(grammar=self.strict_form) if self.strict_form else None
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": name}, "parameters": closed_schema(schema, f"#/$defs/{place}")},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
            for place, (name, schema) in enumerate(self.schemas.items())
        ]
        form: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
        form |= {} if self.may_be_several else {"maxItems": 1}
        form["$defs"] = {str(place): call["properties"]["parameters"] for place, call in enumerate(calls)}  # type: ignore[index]
        return StructuredOutputsParams(json=form)


@dataclass(slots=True)
class DeltaReasoning:
    """What the thoughts gained."""

    text: str


Piece = str | DeltaToolCall | DeltaReasoning


class MessageReader:
    """The text of one choice, as the fields of a message: `reasoning`, `content` and `tool_calls`.

    Args: reasoning: None where the model is not known to think.
    """

    def __init__(self, use: ToolUse, reasoning: ReasoningParser | None) -> None:
        self.use, self.reasoning = use, reasoning
        self.parser = None if use.parser is None else use.parser(use.schemas)

    def pieces(self, choice: CompletionOutput) -> Iterator[Piece]:
        """What a choice gained, in the order of its text. A call inside of the thoughts is no call."""
        text, is_final = choice.text, choice.finished()
        if self.reasoning is not None:
            thoughts, text = self.reasoning.read(text, is_final=is_final)
            if thoughts:
                yield DeltaReasoning(thoughts)
            if not self.reasoning.is_over:
                return
        if self.parser is None:
            yield from [text] if text else []
            return
        for piece in self.parser.extract_tool_calls_streaming(text, is_final=is_final):
            if isinstance(piece, str) or piece.index == 0 or self.use.may_be_several:
                yield piece

    def delta(self, choice: CompletionOutput) -> dict[str, Any]:
        """What a choice gained: one piece of each call, the first of which has its id and name."""
        if self.parser is None and self.reasoning is None:
            return {"content": choice.text}
        delta, calls = dict[str, Any](), dict[int, dict[str, Any]]()
        content, arguments = list[str](), dict[int, list[str]]()
        for piece in self.pieces(choice):
            if isinstance(piece, DeltaReasoning):
                delta["reasoning"] = delta["reasoning_content"] = piece.text
            elif isinstance(piece, str):
                content.append(piece)
            else:
                call = calls.setdefault(piece.index, {"index": piece.index, "function": {}})
                arguments.setdefault(piece.index, []).append(piece.arguments)
                if piece.name is not None:
                    call |= {"id": self.make_id(), "type": "function", "function": {"name": piece.name}}
        for index, call in calls.items():
            call["function"]["arguments"] = "".join(arguments[index])
        delta |= {"content": "".join(content)} if content else {}
        return delta | ({"tool_calls": [*calls.values()]} if calls else {})

    def make_id(self) -> str:
        return (self.use.parser or ToolParser).make_id()

    def message(self, choice: CompletionOutput) -> dict[str, Any]:
        """The same of a whole choice."""
        message = self.delta(choice)
        for call in message.get("tool_calls", ()):
            del call["index"]
        none = {} if self.reasoning is None else {"reasoning": None, "reasoning_content": None}
        return {"content": None if "tool_calls" in message or "reasoning" in message else "", **none, **message}

    def finish_reason(self, choice: CompletionOutput) -> str | None:
        """A named function is what was asked for, and its end an ordinary one: so OpenAI has it. What a stop string has
        cut is no call that a client could make."""
        if self.parser is None or self.use.is_named:
            return choice.finish_reason
        count = self.parser.num_calls if self.use.may_be_several else min(self.parser.num_calls, 1)
        is_whole = count < self.parser.num_calls or not self.parser.is_in_call
        return "tool_calls" if count > 0 and is_whole and choice.finish_reason == "stop" else choice.finish_reason


def arguments_of(text: str) -> dict[str, Any]:
    """Of a call, as far as they go. What is no object is put into one, since templates fail on anything else."""
    try:
        found = from_json(text or "{}", allow_partial="trailing-strings")
    except ValueError:
        found = text
    return found if isinstance(found, dict) else {"arguments": found}
