"""What changed between two milestones, as a unified diff or as a table of lines."""

from __future__ import annotations

import difflib
import io
from collections.abc import Iterator
from dataclasses import dataclass

from milestones.sources import File, Snapshot
from milestones.spec import MilestoneError


@dataclass(frozen=True)
class Change:
    """One path that differs; `old` is None where it arrives, `new` where it goes."""

    path: str
    old: File | None
    new: File | None

    def lines(self) -> Iterator[str]:
        """The unified diff, as git would print it."""
        a = f"a/{self.path}" if self.old else "/dev/null"
        b = f"b/{self.path}" if self.new else "/dev/null"
        old, new = _text(self.old), _text(self.new)
        if old is None or new is None:
            yield f"Binary files {a} and {b} differ\n"
            return
        for line in difflib.unified_diff(old, new, a, b):
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"

    def added_and_removed(self) -> tuple[int, int]:
        body = list(self.lines())[2:]  # after the two lines that name the file
        return sum(line[0] == "+" for line in body), sum(line[0] == "-" for line in body)


def compare(old: Snapshot, new: Snapshot, path: str | None = None) -> list[Change]:
    """Every path that differs between two trees; `path` narrows it to one file or folder, "." does not."""
    names = sorted(old.keys() | new.keys())
    if path not in (None, "."):
        prefix = path.removeprefix("./").rstrip("/")
        names = [name for name in names if name == prefix or name.startswith(f"{prefix}/")]
        if not names:
            raise MilestoneError(f"PATH must be a file or folder of one of the two milestones, got {path!r}")
    return [Change(n, old.get(n), new.get(n)) for n in names if old.get(n) != new.get(n)]


def _text(file: File | None) -> list[str] | None:
    """The file's lines; none for an absent file, None for a binary one."""
    if file is None:
        return []
    try:
        return list(io.StringIO(file.data.decode("utf-8"), newline="\n"))
    except UnicodeDecodeError:
        return None
