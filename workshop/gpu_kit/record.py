"""What came of each part, as JSON, written anew after every one of them.

    {"kit", "command", "date", "minutes", "seconds", "parts": [{"name", "title", "command", "limit_s", "status", …}, …]}

A part's `status`:

    passed    it ran to its end and found nothing wrong
    failed    it ended with an error, or found something: `reason` says what, `tail` has the end of its output
    stopped   its time was over; what it had written by then is kept
    refused   it said that it cannot do this here
    skipped   it was not begun
"""

from __future__ import annotations

import datetime
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TAIL_LINES = 40

Result = dict[str, Any]


@dataclass
class Record:
    """The results so far."""

    command: str
    minutes: float
    device: str
    tiny: bool
    seconds: float = 0.0
    parts: list[Result] = field(default_factory=list)
    date: str = field(default_factory=lambda: datetime.datetime.now().isoformat(timespec="minutes"))

    def as_dict(self) -> dict[str, Any]:
        names = ("command", "date", "device", "tiny", "minutes", "seconds", "parts")
        return {"kit": "folovllm gpu"} | {name: getattr(self, name) for name in names}

    def report(self, part: str) -> Result | None:
        """What a part measured, if it did."""
        return next((found.get("report") for found in self.parts if found["name"] == part), None)

    def save(self, path: Path) -> None:
        """All of it or nothing: who reads it meanwhile finds the one before."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(new, path)


def tail_of(log: bytes) -> list[str]:
    """The last lines, for a page that has no room for all."""
    return log.decode(errors="replace").rstrip().splitlines()[-TAIL_LINES:]
