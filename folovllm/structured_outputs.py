"""What a request says about the form of its text. vLLM: sampling_params.py (StructuredOutputsParams)"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from folovllm.utils.checks import check_bool, check_str, wrong

_OPEN = {"additionalProperties", "patternProperties", "unevaluatedProperties", "anyOf", "oneOf", "$ref"}


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
