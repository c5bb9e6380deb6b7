"""Compares the output that a page shows with the output of its code, as a unified diff.

Lines must be equal, but for spaces at their ends; a line that is `…` alone matches any lines that the page leaves out.
Where the figures depend on the machine, any number or list of numbers matches another, and the width of columns and
boxes does not count: only the words and the numbers' places among them are compared.
"""

from __future__ import annotations

import difflib
import re

CUT = "…"
_NUMBER = re.compile(r"\s*[-+]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?\s*")
_LIST = re.compile(r"#(?:,#)+")
_UNIT = re.compile(r"(?<=\d )[mun](?=sec\b)")  # timeit chooses it by the figure
_ROOM = re.compile(r"([ ━─═])\1+")


def difference(shown: str, printed: str, *, machine: bool = False) -> str | None:
    """How a page's block differs from what was printed, as a diff; None where it does not."""
    said, true = (_lines(text, machine) for text in (shown, printed))
    pattern = "".join(r"(?:.*\n)*" if line == CUT else re.escape(line) + r"\n" for line in said)
    if re.fullmatch(pattern, "".join(f"{line}\n" for line in true)):
        return None
    changes = list(difflib.unified_diff(said, true, "the page", "printed", lineterm="", n=0))
    return "\n".join(line for line in changes if not line.startswith("@@"))


def _lines(text: str, machine: bool) -> list[str]:
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    return [_masked(line) for line in lines] if machine else lines


def _masked(line: str) -> str:
    numbers = _LIST.sub("#", _NUMBER.sub("#", _UNIT.sub("", line)))
    return _ROOM.sub(r"\1", numbers).strip()
