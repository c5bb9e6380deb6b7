"""Types of a tool's parameters: "5", which a model wrote as plain text, is 5 where the schema says integer.

A schema says so itself, by examples (enum, const), or by others (anyOf, oneOf, allOf, and $ref, which pydantic writes
for each class and enumeration).

vLLM: tool_parsers/utils.py (coerce_to_schema_type, extract_types_from_schema)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from folovllm.structured_outputs import at_pointer, listed

_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict,
    "null": type(None),
}  # fmt: skip
_TYPE_OF_WORD = {"properties": "object", "items": "array", "prefixItems": "array"}
"""What words tell of a schema that names no type."""

_MOST_PLACES = 64
"""That are followed: a schema may refer from place to place without end."""


class Parameters:
    """Args: schema: of a function's arguments."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.root = schema

    def as_json(self, name: str, text: str) -> str:
        """A parameter's value. What its schema does not allow stays a text, and so does what may be any value."""
        schemas = list(self._of_property(self.root, name, set()))
        values = (value for value in _readings(text) if all(self._allows(schema, value, {}) for schema in schemas))
        try:
            written = json.dumps(next(values, text), ensure_ascii=False, allow_nan=False)  # 1e999 is read as Infinity
            written.encode()  # an escape may stand for half of a character
        except (ValueError, RecursionError):
            return json.dumps(text, ensure_ascii=False)
        return written

    def _of_property(self, schema: Any, name: str, seen: set[str]) -> Iterator[Any]:
        if not isinstance(schema, Mapping):
            return
        properties, place = schema.get("properties"), schema.get("$ref")
        if isinstance(properties, Mapping) and name in properties:
            yield properties[name]
        if isinstance(place, str) and place not in seen and len(seen) < _MOST_PLACES:
            seen.add(place)
            yield from self._of_property(at_pointer(self.root, place), name, seen)
        for part in listed(schema, "allOf"):
            yield from self._of_property(part, name, seen)

    def _allows(self, schema: Any, value: Any, known: dict[str, bool]) -> bool:
        """As far as the value's own type and enumerations say; what is inside of it is not looked at.

        known: what the places that were referred to say. One that leads back to itself allows nothing by that."""
        if not isinstance(schema, Mapping):
            return schema is not False
        implied = [kind for word, kind in _TYPE_OF_WORD.items() if word in schema]
        kinds = schema.get("type", implied)
        if kinds and not any(_is_of(value, kind) for kind in (kinds if isinstance(kinds, list) else [kinds])):
            return False
        examples = [schema["const"]] if "const" in schema else listed(schema, "enum")
        if examples and not any(type(value) is type(each) and value == each for each in examples):
            return False
        place = schema.get("$ref")
        if isinstance(place, str) and place not in known and len(known) < _MOST_PLACES:
            known[place] = False
            known[place] = self._allows(at_pointer(self.root, place), value, known)
        if isinstance(place, str) and not known.get(place, True):
            return False
        choices = [options for word in ("anyOf", "oneOf") if (options := listed(schema, word))]
        if not all(any(self._allows(option, value, known) for option in options) for options in choices):
            return False
        return all(self._allows(part, value, known) for part in listed(schema, "allOf"))


def _is_of(value: Any, kind: Any) -> bool:
    if isinstance(value, bool):
        return bool(kind == "boolean")
    is_whole = kind == "integer" and isinstance(value, float) and value.is_integer()
    return is_whole or (isinstance(kind, str) and kind in _TYPES and isinstance(value, _TYPES[kind]))


def _readings(text: str) -> Iterator[Any]:
    """What a text may mean, the first that is allowed: `null` is null where it may be, all else a text before JSON."""
    if text == "null":
        yield None
    yield text
    try:
        yield json.loads(text.lower() if text in ("True", "False") else text, parse_constant=int)  # NaN is no JSON
    except (ValueError, RecursionError):
        return
