"""What a request says about the form of its text. vLLM: sampling_params.py (StructuredOutputsParams)"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import unquote

from folovllm.utils.checks import check_bool, check_str, wrong

_OPEN = {"additionalProperties", "patternProperties", "unevaluatedProperties", "anyOf", "oneOf", "$ref"}

JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}
"""One way of writing each value: where white space is free, a model may write it until its tokens run out. Lenient, as
an unknown `format` is an annotation; other words that llguidance does not know become warnings, and are refused."""

_MOST_PASSES = 64
"""Over a schema's places, which may hang on each other in a long row."""


@dataclass
class StructuredOutputsParams:
    """The form that a text must have; exactly one of the fields.

    `json` is a JSON schema, as a dict or as text; `json_object=True` is any JSON object; `regex` must match the whole
    text; `choice` is a list of texts; `grammar` is written in Lark or in GBNF, with the rule `start` or `root`.
    Where a schema does not say whether an object may have other properties, it may have none; it may with
    `disable_additional_properties=False`.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_additional_properties: bool = True

    def __post_init__(self) -> None:
        if self.json_object is not None:
            check_bool("structured_outputs.json_object", self.json_object)
        check_bool("structured_outputs.disable_additional_properties", self.disable_additional_properties)
        forms = [field.name for field in fields(self) if field.name != "disable_additional_properties"]
        given = [name for name in forms if getattr(self, name) not in (None, False, [])]
        if len(given) != 1:
            names = ", ".join(forms)
            raise ValueError(f"structured_outputs must have exactly one of {names}, got {given or 'none'}")
        if self.json is not None and not isinstance(self.json, (str, dict)):
            raise wrong("structured_outputs.json", "be a JSON schema, as a dict or as text", self.json)
        for name in ("regex", "grammar"):
            if getattr(self, name) is not None:
                check_str(f"structured_outputs.{name}", getattr(self, name))
        if self.choice is not None:
            if not isinstance(self.choice, (list, tuple)) or not all(isinstance(c, str) and c for c in self.choice):
                raise wrong("structured_outputs.choice", "be a list of texts that are not empty", self.choice)
            self.choice = list(self.choice)


def kind_and_text(form: StructuredOutputsParams) -> tuple[str, str]:
    """What a form is compiled from: "json", "choice", "regex" or "grammar", and its text.

    Raises ValueError: the text is no JSON schema, or no value can fit it."""
    if form.json is not None or form.json_object:
        return "json", '{"type": "object"}' if form.json is None else _schema_text(form)
    if form.choice is not None:
        return "choice", json.dumps(form.choice, ensure_ascii=False)
    return ("regex", form.regex) if form.regex is not None else ("grammar", str(form.grammar))


def _schema_text(form: StructuredOutputsParams) -> str:
    name, given = "structured_outputs.json", form.json
    try:
        schema = json.loads(given if isinstance(given, str) else json.dumps(given))
        closed = closed_schema(schema) if form.disable_additional_properties else schema
        endless = _endless(schema)
    except RecursionError:
        raise wrong(name, "not be nested so deeply", given) from None
    except (ValueError, TypeError) as error:
        raise wrong(name, "be JSON", given, str(error)) from None
    if not isinstance(schema, (dict, bool)):
        raise wrong(name, "be a JSON schema, an object", given)
    if endless is not None:
        raise wrong(name, "have texts that end", given, f"what {endless!r} requires holds it again, without end")
    return json.dumps(closed, ensure_ascii=False)


def as_lark(text: str) -> str:
    """A grammar in Lark or GBNF, as Lark. Raises ValueError: it is neither."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if not re.search(r"(?m)^[ \t]*[\w-]+\s*::=", text):
        return text
    try:
        return gbnf_to_lark(text)
    except Exception as error:  # of its own, an IndexError, a RecursionError
        raise ValueError(f"it is no GBNF: {error}") from None


def closed_schema(schema: Any, place: str = "#") -> Any:
    """A schema whose objects have no other properties where it does not say that they may: a model that has not learnt
    when to stop would add others for ever. vLLM's default backend, xgrammar, takes a schema so.

    place: where the form will stand in another. What it refers to moves there, too.
    """
    return _moved(schema, place, closes='"allOf"' not in json.dumps(schema))


def _moved(schema: Any, place: str, *, closes: bool) -> Any:
    if not isinstance(schema, dict):
        return schema
    moved = dict(schema)
    for word, value in schema.items():
        if word in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, dict):
            moved[word] = {name: _moved(each, place, closes=closes) for name, each in value.items()}
        elif word in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            moved[word] = [_moved(each, place, closes=closes) for each in value]
        elif word in ("items", "additionalProperties"):
            moved[word] = _moved(value, place, closes=closes)
        elif word == "$ref" and isinstance(value, str) and value.startswith("#"):
            moved[word] = place + value[1:]
    if closes and "properties" in schema and not schema.keys() & _OPEN:
        moved["additionalProperties"] = False
    return moved


def at_pointer(schema: Any, place: str) -> Any:
    """What a pointer such as "#/$defs/Pet" leads to; None where that is nothing."""
    found: Any = schema if place.startswith("#") else None
    for step in unquote(place).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _endless(schema: Any) -> str | None:
    """A place that a $ref names and no value fits, since any would have to hold another one. A matcher that has come to
    it would go on until its tokens run out."""
    places, ends = {"#": schema}, set[str]()
    _note_places(schema, schema, places)
    for _ in range(_MOST_PASSES):
        before = len(ends)
        for place in reversed([*places]):  # what a place needs is mostly named after it
            if place not in ends and _has_end(places[place], ends):
                ends.add(place)
        if len(ends) == before:
            return next((place for place in reversed([*places]) if place not in ends), None)
    return None


def _note_places(part: Any, schema: Any, places: dict[str, Any]) -> None:
    if isinstance(part, dict) and isinstance(place := part.get("$ref"), str):
        places.setdefault(place, at_pointer(schema, place))
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        _note_places(each, schema, places)


def _has_end(schema: Any, ends: set[str]) -> bool:
    """As far as its own words say, where the places in `ends` have one."""
    if not isinstance(schema, dict) or "const" in schema or "enum" in schema:
        return True
    if isinstance(place := schema.get("$ref"), str) and place not in ends:
        return False
    for options in (listed(schema, "anyOf"), listed(schema, "oneOf")):
        if options and not any(_has_end(each, ends) for each in options):
            return False
    needed, properties = listed(schema, "allOf"), schema.get("properties")
    if schema.get("type") == "object" and isinstance(properties, dict):
        needed = needed + [each for name, each in properties.items() if name in listed(schema, "required")]
    if schema.get("type") == "array" and isinstance(least := schema.get("minItems"), int) and least > 0:
        first = listed(schema, "prefixItems")
        needed = needed + first[:least] + ([schema.get("items")] if least > len(first) else [])
    return all(_has_end(each, ends) for each in needed)


def listed(schema: Mapping[str, Any], word: str) -> list[Any]:
    return value if isinstance(value := schema.get(word), list) else []
