"""PTX as a list of instructions."""

from __future__ import annotations

import re
from typing import NamedTuple


class Instruction(NamedTuple):
    guard: str | None
    """The predicate under which a thread takes part."""
    negated: bool
    name: str
    kinds: tuple[str, ...]
    """What follows the name: of "ld.global.v4.b32" global, v4, b32."""
    operands: tuple[str, ...]
    text: str


class Program:
    """One kernel.

    Attributes:
        labels: where each label stands in `code`.
    """

    def __init__(self, ptx: str) -> None:
        body = re.sub(r"//.*", "", ptx)
        body = body[body.index(".entry") :]
        found = re.search(r"\.reqntid (\d+)", body)
        assert found is not None
        self.num_threads = int(found[1])
        self.code: list[Instruction] = []
        self.labels: dict[str, int] = {}
        for statement in re.split(r"[;\n]", body[body.index("{") + 1 :]):
            self._add(
                " ".join(statement.strip(" \t{}" if statement.count("{") != statement.count("}") else " \t").split())
            )

    def _add(self, statement: str) -> None:
        if (label := re.match(r"(\$\w+):", statement)) is not None:
            self.labels[label[1]] = len(self.code)
        elif statement and statement[0] not in ".{})":
            self.code.append(_instruction(statement))


def _instruction(text: str) -> Instruction:
    guard, negated, rest = None, False, text
    if (found := re.match(r"@(!?)(%?\w+)\s+(.*)$", text)) is not None:
        guard, negated, rest = found[2], found[1] == "!", found[3]
    name, _, operands = rest.partition(" ")
    name, *kinds = name.split(".")
    # A comma inside of brackets divides nothing.
    parts = re.findall(r"(?:\[[^\]]*\]|\{[^}]*\}|[^,\[{])+", operands)
    return Instruction(guard, negated, name, tuple(kinds), tuple(part.strip() for part in parts if part.strip()), text)
