"""What a page says that its code prints, held against what the code printed.

To the letter, but for spaces at a line's end; a line that is `…` alone stands for lines that the page leaves out.
Where the figures belong to a machine, any number, or any list of them, is as good as another, and so is the room that
columns and boxes give it: the words, and where a number stands among them, are still held.
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
