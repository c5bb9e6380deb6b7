"""Carries a change of the root into the stored versions of the same files.

    root, as committed ──── your change ────▶ root, as it lies there
          │                                          │
          └─▶ milestones/m3/<path> ── the same ──▶ merged (git merge-file)

A fix belongs to every milestone that has the code, and a file that a later milestone changed has more versions
than one. Each of them is a three-way merge of its own: base is the root as committed. What merges is written; what
does not is named and left for you. A copy that is then equal to the version after it is deleted, for nothing needs
it. Files that you moved with `git mv` take their copies along. Running it twice does nothing more.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from milestones.chain import Course
from milestones.sources import git, working_tree
from milestones.spec import MilestoneError, matches

Outcome = Literal["merged", "unchanged", "conflict"]


@dataclass
class Carried:
    """What became of one stored version."""

    path: str  # in the tree; where it was renamed, the new one
    milestone: int
    outcome: Outcome
    text: bytes  # its content from here on
    renamed_from: str | None = None
    conflict: str = ""  # the lines that did not merge
    equal: bool = False  # to the next version: deleted

    @property
    def stored(self) -> str:
        return f"milestones/m{self.milestone}/{self.path}"


@dataclass(frozen=True)
class Change:
    """A root file that differs from the base; `old` is another path where it was moved."""

    old: str
    new: str


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("paths", metavar="PATH", nargs="*", help="only these files or folders (default: all changed)")
    command.add_argument("--base", metavar="REV", default="HEAD", help="the commit before your change (default: HEAD)")
    command.add_argument("--dry-run", action="store_true", help="tell, and write nothing")
    command.add_argument("--markers", action="store_true", help="write what does not merge too, with conflict markers")


def carry(root: Path, base: str = "HEAD", paths: list[str] | None = None, *, markers: bool = False) -> list[Carried]:
    """Merge the root's change since `base` into every stored version of what changed; nothing is written here."""
    stored = Course.load(working_tree(root)).stored
    carried: list[Carried] = []
    for change in changed(root, base):
        if paths and not any(_is_under(change.new, path) or _is_under(change.old, path) for path in paths):
            continue
        before = git(root, "show", f"{base}:{change.old}")
        after = (root / change.new).read_bytes()
        later = after
        entries: list[Carried] = []
        for number in sorted(stored, reverse=True):
            here = stored[number].get(change.old) or stored[number].get(change.new)
            if here is None:
                continue
            entry = _merged(root, change, number, here.data, before, after, base, markers=markers)
            entry.equal = entry.text == later
            entries.append(entry)
            later = entry.text
        carried += reversed(entries)
    return carried


def changed(root: Path, base: str) -> list[Change]:
    """Root files whose content or place differs from `base`; what was added or deleted has nothing to merge."""
    try:
        git(root, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
    except MilestoneError as error:
        raise MilestoneError(f"--base must name a commit, got {base!r}") from error
    words = git(root, "diff", "--name-status", "--find-renames", "-z", base, "--", ":(exclude)milestones/m*/")
    names = iter(os.fsdecode(word) for word in words.split(b"\0") if word)
    changes = []
    for status in names:
        old = next(names)
        new = next(names) if status[0] in "RC" else old
        if status[0] in "RM":
            changes.append(Change(old, new))
    return changes


def write(root: Path, carried: list[Carried], *, markers: bool) -> None:
    """Put the stored versions where they belong, and a moved file's new name into each milestone.toml."""
    for entry in carried:
        target = root / entry.stored
        if entry.renamed_from and (source := root / f"milestones/m{entry.milestone}/{entry.renamed_from}").is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)
        if entry.equal:
            target.unlink()
        elif entry.outcome == "merged" or (entry.outcome == "conflict" and markers):
            target.write_bytes(entry.text)
    moves = {entry.renamed_from: entry.path for entry in carried if entry.renamed_from}
    for spec in sorted(root.glob("milestones/m*/milestone.toml")):
        text = before = spec.read_text(encoding="utf-8")
        for old, new in moves.items():
            text = text.replace(f'"{old}"', f'"{new}"')
        if text != before:
            spec.write_text(text, encoding="utf-8")


def _merged(
    root: Path, change: Change, number: int, here: bytes, before: bytes, after: bytes, base: str, *, markers: bool
) -> Carried:
    """One stored version with the change in it."""
    renamed_from = change.old if change.old != change.new else None
    entry = Carried(change.new, number, "unchanged", here, renamed_from)
    if any(line.startswith(b"<<<<<<< ") for line in here.splitlines()):
        entry.outcome, entry.conflict = "conflict", "it still has markers of an earlier conflict"
        return entry
    with tempfile.TemporaryDirectory() as scratch:
        files = []
        labels = (entry.stored, f"the root at {base}", "the root")
        for name, data in zip(("here", "before", "after"), (here, before, after), strict=True):
            files.append(Path(scratch) / name)
            files[-1].write_bytes(data)
        options = [word for label in labels for word in ("-L", label)]
        done = subprocess.run(
            ["git", "merge-file", "--stdout", "--diff3", *options, *map(str, files)],
            cwd=root,
            capture_output=True,
            check=False,
        )
    if done.returncode == 0:
        entry.text = done.stdout
        entry.outcome = "unchanged" if entry.text == here else "merged"
    elif done.returncode < 128:  # the number of conflicts
        entry.outcome, entry.conflict = "conflict", conflicts(done.stdout.decode("utf-8", errors="replace"))
        entry.text = done.stdout if markers else here
    else:
        entry.outcome, entry.conflict = "conflict", done.stderr.decode(errors="replace").strip()
    return entry


def conflicts(text: str) -> str:
    """The parts between conflict markers, markers included."""
    kept, inside = [], False
    for line in text.splitlines():
        inside = inside or line.startswith("<<<<<<< ")
        if inside:
            kept.append(line)
        inside = inside and not line.startswith(">>>>>>> ")
    return "\n".join(kept)


def _is_under(path: str, folder: str) -> bool:
    name = folder.removeprefix("./").rstrip("/")
    return path == name or matches(f"{name}/**", path)
