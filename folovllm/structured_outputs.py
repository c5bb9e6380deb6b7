"""What a request says about the form of its text. vLLM: sampling_params.py (StructuredOutputsParams)"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from folovllm.utils.checks import check_bool, check_str, wrong


@dataclass
class StructuredOutputsParams:
    """The form that a text must have; exactly one of the fields.

    `json` is a JSON schema, as a dict or as text; `json_object=True` is any JSON object; `regex` must match the whole
    text; `choice` is a list of texts; `grammar` is written in Lark or in GBNF, with the rule `start` or `root`.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def __post_init__(self) -> None:
        if self.json_object is not None:
            check_bool("structured_outputs.json_object", self.json_object)
        given = [field.name for field in fields(self) if getattr(self, field.name) not in (None, False, [])]
        if len(given) != 1:
            names = ", ".join(field.name for field in fields(self))
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
