"""BodyLimits: how much the body of a request may hold, in one table.

A program with an engine in the same process may ask it for anything. A server's clients are strangers. Each limit
is far above what a request needs, and so low that what is under it costs milliseconds. They are checked before
types are, on the plain lists and dicts that JSON decodes to: a list that is too long is refused by its length, and
its elements are not read.

vLLM: envs.py (VLLM_MAX_STOP_TOKEN_IDS, VLLM_MAX_NUM_BAD_WORDS), v1/worker/gpu/sample/logit_bias.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from folovllm.utils.checks import check_int, did_you_mean

ENTRIES, FIELDS, CHARACTERS, AS_JSON = "entries", "fields", "characters", "characters of JSON"


def _limit(most: int, unit: str, *paths: str) -> Any:
    return field(default=most, metadata={"unit": unit, "paths": paths})


@dataclass(frozen=True)
class BodyLimits:
    """Each is the most that any of its paths may have. `[]` in a path is each entry of a list."""

    body: int = _limit(2 * 2**20, "bytes")
    prompts: int = _limit(256, ENTRIES, "prompt")
    messages: int = _limit(4096, ENTRIES, "messages", "input")
    parts: int = _limit(1024, ENTRIES, "messages[].content", "input[].content", "input[].output")
    tools: int = _limit(128, ENTRIES, "tools", "messages[].tool_calls")
    fields: int = _limit(
        64, FIELDS, "", "messages[]", "messages[].content[]", "stream_options", "response_format",
        "response_format.json_schema", "structured_outputs", "tools[]", "tools[].function", "tool_choice",
        "input[]", "input[].content[]", "text", "text.format", "metadata",
    )  # fmt: skip
    stop: int = _limit(64, ENTRIES, "stop")
    stop_token_ids: int = _limit(128, ENTRIES, "stop_token_ids")
    bad_words: int = _limit(128, ENTRIES, "bad_words")
    allowed_token_ids: int = _limit(1024, ENTRIES, "allowed_token_ids")
    logit_bias: int = _limit(1024, ENTRIES, "logit_bias")
    choice: int = _limit(1024, ENTRIES, "structured_outputs.choice")
    tokens: int = _limit(2**18, ENTRIES, "tokens")
    stop_length: int = _limit(1024, CHARACTERS, "stop", "stop[]")
    bad_word_length: int = _limit(256, CHARACTERS, "bad_words[]")
    choice_length: int = _limit(1024, CHARACTERS, "structured_outputs.choice[]")
    regex_length: int = _limit(4096, CHARACTERS, "structured_outputs.regex")
    grammar_length: int = _limit(2**16, CHARACTERS, "structured_outputs.grammar")
    template_length: int = _limit(2**16, CHARACTERS, "chat_template")
    name_length: int = _limit(
        1024, CHARACTERS, "model", "cache_salt", "request_id", "reasoning_effort", "messages[].role", "messages[].name",
        "response_format.json_schema.name", "response_format.json_schema.description", "tools[].function.name",
        "tools[].name", "previous_response_id",
        "text.format.name", "text.format.description",
    )  # fmt: skip
    schema_length: int = _limit(
        2**15, AS_JSON, "structured_outputs.json", "response_format.json_schema.schema", "tools[].function.parameters",
        "tools[].parameters", "text.format.schema",
    )  # fmt: skip
    template_args_length: int = _limit(2**16, AS_JSON, "chat_template_kwargs")

    def __post_init__(self) -> None:
        for name in names():
            check_int(f"limit {name}", getattr(self, name), 1)

    @classmethod
    def parse(cls, given: Sequence[str]) -> BodyLimits:
        """From `NAME=N`, as the command line has them. Raises ValueError: no such limit, or no whole number."""
        values = {}
        for text in given:
            name, _, number = text.partition("=")
            if name not in names():
                hint = did_you_mean(name, names()) or f"there are {', '.join(names())}"
                raise ValueError(f"--limit must be NAME=N, got {text!r}: {name!r} is none; {hint}")
            if not number.isdecimal() or not number.isascii():
                raise ValueError(f"--limit must be NAME=N with a whole number, got {text!r}")
            values[name] = int(number)
        return cls(**values)

    def check(self, body: Any) -> None:
        """Raises ValueError: what is too much, by the field's name. A value of a wrong type is for others to find."""
        for limit, unit, path in _ROWS:
            most = getattr(self, limit)
            for name, value in _at(body, path):
                size = _size(value, unit, most)
                if size <= most or (name == "prompt" and _is_token_ids(value)):
                    continue
                got = f"{size} or more" if unit == AS_JSON else size
                raise ValueError(
                    f"{name or 'the body'} must have at most {most} {unit}, got {got}: send less, or serve with "
                    f"--limit {limit}=N"
                )


_ROWS = [
    (row.name, row.metadata["unit"], path.replace("[]", ".[]").split(".") if path else [])
    for row in fields(BodyLimits)
    for path in row.metadata["paths"]
]


def names() -> list[str]:
    return [limit.name for limit in fields(BodyLimits)]


def _is_token_ids(prompt: Any) -> bool:
    """Whether it is one prompt, which max_model_len bounds, and no list of them."""
    return isinstance(prompt, list) and isinstance(prompt[0], int)


def _at(value: Any, path: Sequence[str], name: str = "") -> Iterator[tuple[str, Any]]:
    """(name, value) of all that a path leads to. Outer lists are bounded before: their rows of the table come first."""
    if not path:
        yield name, value
    elif path[0] == "[]":
        if isinstance(value, list):
            for place, entry in enumerate(value):
                yield from _at(entry, path[1:], f"{name}[{place}]")
    elif isinstance(value, dict) and path[0] in value:
        yield from _at(value[path[0]], path[1:], f"{name}.{path[0]}" if name else path[0])


def _size(value: Any, unit: str, enough: int) -> int:
    """The size of a value in its unit, or 0 for one that has none. Of JSON no more is counted than `enough`."""
    if unit == AS_JSON:
        return _json_size(value, enough)
    if unit == CHARACTERS:
        return len(value) if isinstance(value, str) else 0
    return len(value) if isinstance(value, dict) or (unit == ENTRIES and isinstance(value, list)) else 0


def _json_size(value: Any, enough: int) -> int:
    """Its characters without punctuation: all but a text counts as one."""
    size, waiting = 0, [value]
    while waiting and size <= enough:
        part = waiting.pop()
        size += len(part) if isinstance(part, str) else 1
        if isinstance(part, (list, dict)):
            waiting += part
        if isinstance(part, dict):
            waiting += part.values()
    return size
