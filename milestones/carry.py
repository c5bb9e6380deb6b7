"""Carries a change along the chain of a file's versions, one version after the other.

    milestones/m1/x.py ──▶ milestones/m3/x.py ──▶ x.py     a fix made at the earliest version goes up to the root
    milestones/m1/x.py ◀── milestones/m3/x.py ◀── x.py     a change made at the root goes down

Each step is a three-way merge (git merge-file): base is the version before its change, ours the next version, theirs
the changed one. Two neighbours differ by one milestone only, so few steps conflict. A conflict is written into the
file with git's markers, and the way ends there. Solve it and run `carry` again: it goes on from that file. For this
the git directory holds what each version was when its change was last carried, until the base is another commit.

On the way down a change also comes to versions that never had its code. A hunk that does not merge into one of these is
left out of it and of all that are older.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path
from typing import Literal

from milestones.chain import Course
from milestones.sources import commit, git, merge_file, working_tree
from milestones.spec import MilestoneError, matches

# changed: by hand, where the way begins; absent: has none of the code, the way ends; waiting: beyond a conflict
Way = Literal["up", "down"]
Outcome = Literal["changed", "merged", "unchanged", "absent", "conflict", "waiting"]


@dataclass
class Carried:
    """What became of one version of a file."""

    path: str  # in the tree; where it was renamed, the new one
    milestone: int | None  # None: the root
    text: bytes  # its content from here on
    outcome: Outcome = "unchanged"
    renamed_from: str | None = None
    conflict: str = ""  # the lines that did not merge
    left_out: int = 0  # hunks whose code is not here
    equal: bool = False  # to the next version: deleted

    @property
    def stored(self) -> str:
        return self.path if self.milestone is None else f"milestones/m{self.milestone}/{self.path}"


@dataclass
class Memory:
    """What has been carried since the commit `base`: from then on a version's change is what differs from `carried`."""

    base: str
    carried: dict[str, str] = field(default_factory=dict)  # stored path -> content
    stopped: dict[str, Way] = field(default_factory=dict)  # files whose way ended at a conflict

    @classmethod
    def load(cls, root: Path, base: str) -> Memory:
        file = _memory_file(root)
        memory = cls(**json.loads(file.read_text("utf-8"))) if file.is_file() else cls(base)
        return memory if memory.base == base else cls(base)

    def before(self, chain: dict[int, Carried], committed: Course) -> dict[int, bytes]:
        """The versions before their changes; a version of a new file has none."""
        files = {n: committed.version(entry.renamed_from or entry.path, n) for n, entry in chain.items()}
        before = {n: file.data for n, file in files.items() if file}
        here = {n: self.carried[entry.stored] for n, entry in chain.items() if entry.stored in self.carried}
        carried = {n: text.encode("utf-8", "surrogateescape") for n, text in here.items()}
        if any(chain[n].text == before.get(n) != text for n, text in carried.items()):  # you took it back
            self.stopped.pop(chain[max(chain)].path, None)
            return before
        return before | carried

    def settle(self, entry: Carried) -> None:
        """Its change has been carried."""
        self.carried[entry.stored] = entry.text.decode("utf-8", "surrogateescape")


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("paths", metavar="PATH", nargs="*", help="only these files or folders (default: all changed)")
    command.add_argument("--base", metavar="REV", default="HEAD", help="the commit before your change (default: HEAD)")
    command.add_argument("--dry-run", action="store_true", help="tell, and write nothing")


def carry(root: Path, base: str = "HEAD", paths: list[str] | None = None) -> tuple[list[Carried], Memory]:
    """Merge each change since `base` into the other versions of its file; nothing is written here. Paths are those of
    the tree or of a stored version. Versions are sorted from the earliest to the root."""
    try:
        revision = git(root, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}").decode().strip()
    except MilestoneError as error:
        raise MilestoneError(f"--base must name a commit, got {base!r}") from error
    memory = Memory.load(root, revision)
    course, committed = Course.load(working_tree(root)), Course.load(commit(root, revision))
    moves = _moves(root, revision)
    carried: list[Carried] = []
    stored = {path for files in course.stored.values() for path in files}
    for path in sorted({moves.get(path, path) for path in stored}):
        old = next((old for old, new in moves.items() if new == path), None)
        chain = dict(_chain(course, path, old))
        names = {path, old or path, *(entry.stored for entry in chain.values())}
        if paths and not any(_is_under(name, chosen) for name in names for chosen in paths):
            continue
        if _carry_along(chain, committed, memory) or old in stored:
            carried += chain.values()
    return carried, memory


def _chain(course: Course, path: str, old: str | None) -> Iterator[tuple[int, Carried]]:
    """The versions of a file that lie on disk, the root last; `old` is its name before a `git mv`."""
    for number, files in sorted(course.stored.items()):
        if file := files.get(path) or files.get(old or path):
            yield number, Carried(path, number, file.data, renamed_from=old)
    if path in course.snapshot:
        yield len(course.milestones), Carried(path, None, course.snapshot[path].data, renamed_from=old)


def _carry_along(chain: dict[int, Carried], committed: Course, memory: Memory) -> bool:
    """Carry what is changed in one file's versions; whether anything is."""
    path, before = chain[max(chain)].path, memory.before(chain, committed)
    changed = [number for number, text in before.items() if text != chain[number].text]
    way: Way = "down" if [chain[number].milestone for number in changed] == [None] else "up"
    way = memory.stopped.pop(path, way)
    if not changed:
        return False
    if way == "down":
        numbers = [number for number in reversed(before) if number <= max(changed)]
        new = (i for i, number in enumerate(numbers) if i and not _is_stored(committed, chain[number]))
        numbers = numbers[: next(new, None)]  # a copy that is not committed yet says: what is above it begins there
    else:
        numbers = [number for number in before if number >= min(changed)]
    if not _walk([(chain[number], before[number]) for number in numbers], memory, way):
        memory.stopped[path] = way
    for entry, later in pairwise(chain.values()):
        entry.equal = entry.text == later.text
    return True


def _is_stored(course: Course, entry: Carried) -> bool:
    assert entry.milestone is not None
    return not {entry.path, entry.renamed_from}.isdisjoint(course.stored.get(entry.milestone, {}))


def _walk(versions: list[tuple[Carried, bytes]], memory: Memory, way: Way) -> bool:
    """Merge along the way, of (version, what it was before) each; whether no conflict stopped it."""
    versions[0][0].outcome = "changed"
    for i, (entry, _) in enumerate(versions):
        if i and not _has_markers(entry):  # of an earlier conflict
            source, base = versions[i - 1]
            _merge(entry, base, source, way)
            memory.settle(source)
        if _has_markers(entry):
            entry.outcome, entry.conflict = "conflict", conflicts(entry.text.decode("utf-8", errors="replace"))
            for later, _ in versions[i + 1 :]:
                later.outcome = "waiting"
            return False
        if entry.outcome == "absent":
            break
    memory.settle(entry)
    return True


def _merge(entry: Carried, base: bytes, source: Carried, way: Way) -> None:
    """Take the change from `base` to `source` into `entry`, as git does."""
    options = [word for label in (entry.stored, "before", source.stored) for word in ("-L", label)]
    change, done = source.text, merge_file(entry.text, base, source.text, *options)
    if way == "down" and 0 < done.returncode < 128:  # the number of conflicts
        change, entry.left_out = _without_absent(entry.text, base, change)
        done = merge_file(entry.text, base, change, *options)
    if done.returncode >= 128:
        raise MilestoneError(f"{entry.stored}: {done.stderr.decode(errors='replace').strip()}")
    if change == base != source.text:
        entry.outcome = "absent"
    else:
        entry.outcome = "unchanged" if done.stdout == entry.text else "merged"
    entry.text = done.stdout


def _without_absent(ours: bytes, base: bytes, theirs: bytes) -> tuple[bytes, int]:
    """`theirs` without the hunks that do not merge into `ours` and whose code is not there, and how many these are."""
    before, after = base.splitlines(keepends=True), theirs.splitlines(keepends=True)
    here = {line.strip() for line in ours.splitlines()}
    kept, left_out = list(before), 0
    for kind, start, end, first, last in reversed(SequenceMatcher(None, before, after, False).get_opcodes()):
        if kind == "equal":
            continue
        alone = b"".join([*before[:start], *after[first:last], *before[end:]])
        if merge_file(ours, base, alone).returncode and _is_absent(before, start, end, here):
            left_out += 1
        else:
            kept[start:end] = after[first:last]
    return b"".join(kept), left_out


def _is_absent(before: list[bytes], start: int, end: int, here: set[bytes]) -> bool:
    """Whether fewer than one in four of a hunk's lines, and of the lines next to it, are `here`. Lines that occur twice
    in the file, as `else:` does, say nothing, nor does the line behind the hunk's own block."""
    lines = [line.strip() for line in before]
    telling = [i for i, line in enumerate(lines) if lines.count(line) == 1 and re.search(rb"\w", line)]
    hunk = [i for i in telling if start <= i < end]
    depth = min((_indent(before[i]) for i in hunk), default=0)
    behind = [i for i in telling if i >= end][:1]
    hunk += [i for i in telling if i < start][-1:] + [i for i in behind if _indent(before[i]) >= depth]
    return 4 * sum(lines[i] in here for i in hunk) < len(hunk)


def _indent(line: bytes) -> int:
    return len(line) - len(line.lstrip())


def _has_markers(entry: Carried) -> bool:
    return any(line.startswith(b"<<<<<<< ") for line in entry.text.splitlines())


def conflicts(text: str) -> str:
    """The parts between conflict markers, markers included."""
    return "\n".join(re.findall(r"^<{7} .*?^>{7} [^\n]*", text, re.DOTALL | re.MULTILINE))


def write(root: Path, carried: list[Carried], memory: Memory) -> None:
    """Put the versions where they belong, a moved file's new name into each milestone.toml, and remember all of it."""
    for entry in carried:
        target = root / entry.stored
        if entry.renamed_from and (source := root / f"milestones/m{entry.milestone}/{entry.renamed_from}").is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)
        if entry.equal:
            target.unlink()
        elif entry.outcome in ("merged", "conflict"):
            target.write_bytes(entry.text)
    moves = {entry.renamed_from: entry.path for entry in carried if entry.renamed_from}
    for spec in sorted(root.glob("milestones/m*/milestone.toml")):
        text = before = spec.read_text(encoding="utf-8")
        for old, new in moves.items():
            text = text.replace(f'"{old}"', f'"{new}"')
        if text != before:
            spec.write_text(text, encoding="utf-8")
    _memory_file(root).write_text(json.dumps(vars(memory)), "utf-8")


def _memory_file(root: Path) -> Path:
    return root / git(root, "rev-parse", "--git-path", "milestones-carry.json").decode().strip()


def _moves(root: Path, base: str) -> dict[str, str]:
    """Old -> new path of the root's files that were moved since `base`."""
    only = ("--find-renames", "--diff-filter=R", base, "--", ":(exclude)milestones/m*/")
    words = git(root, "diff", "--name-status", "-z", *only)
    names = iter([os.fsdecode(word) for word in words.split(b"\0") if word])
    return {next(names): next(names) for _ in names}


def _is_under(path: str, folder: str) -> bool:
    name = folder.removeprefix("./").rstrip("/")
    return path == name or matches(f"{name}/**", path)
