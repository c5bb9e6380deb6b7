"""Annotated git tags m0, m1, … on a history of their own, so that `git worktree add` and `git diff m0 m1`
work. A milestone with steps is a row of commits, the tag on the last, and `git log m2..m3` its table of contents.

Only git's object store and refs/tags are written (`write-tree`, `commit-tree`, `mktag`): neither the
index, nor HEAD, nor a file in the working tree changes. Author and date are fixed, so every clone that
tags the same commit gets the same hashes.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from milestones.chain import Course
from milestones.sources import AUTHOR, EMAIL, IDENTITY, TIMESTAMP, Snapshot, git
from milestones.spec import Milestone, MilestoneError
from milestones.steps import stages
from milestones.trees import build_tree

Outcome = Literal["created", "moved", "unchanged"]


@dataclass(frozen=True)
class Tag:
    name: str
    commit: str
    outcome: Outcome


def tag_all(root: Path, course: Course) -> list[Tag]:
    """Tag every milestone in the repository at `root`; its commits follow those of the milestone before it."""
    before = {m.id: _ours_or_none(root, m.id) for m in course.milestones}
    tags: list[Tag] = []
    known: dict[bytes, str] = {}  # what git has been given already: the same page is in many commits
    parent: str | None = None
    for milestone in course.milestones:
        for tree, message in _commits(course, milestone):
            parent = _commit(root, tree, message, parent, known)
        assert parent is not None
        tag = _write_tag(root, milestone, parent)
        old = before[milestone.id]
        if old != tag:
            git(root, "update-ref", f"refs/tags/{milestone.id}", tag)
        outcome: Outcome = "created" if old is None else "unchanged" if old == tag else "moved"
        tags.append(Tag(milestone.id, parent, outcome))
    return tags


def _commits(course: Course, milestone: Milestone) -> list[tuple[Snapshot, str]]:
    """Trees and messages of the commits that lead to `milestone`: one for each step, or one in all."""
    row = stages(course, milestone)
    return [(stage.tree, stage.message) for stage in row] or [(build_tree(course, milestone), _message(milestone))]


def _message(milestone: Milestone) -> str:
    return f"{milestone.label}\n\n{milestone.summary['en']}\n"


def _commit(root: Path, tree: Snapshot, message: str, parent: str | None, known: dict[bytes, str]) -> str:
    lines = []
    for path, file in tree.items():
        oid = file.oid or known.get(file.data)
        if oid is None:
            oid = known[file.data] = git(root, "hash-object", "-w", "--stdin", stdin=file.data).decode().strip()
        lines.append(f"{file.mode} {oid}\t{path}\0")
    with tempfile.TemporaryDirectory() as scratch:
        index = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}  # never the clone's own
        git(root, "update-index", "-z", "--index-info", stdin="".join(lines).encode(), env=index)
        written = git(root, "write-tree", env=index).decode().strip()
    parents = ["-p", parent] if parent else []
    made = git(root, "commit-tree", "--no-gpg-sign", written, *parents, stdin=message.encode(), env=IDENTITY)
    return made.decode().strip()


def _write_tag(root: Path, milestone: Milestone, target: str) -> str:
    text = (
        f"object {target}\ntype commit\ntag {milestone.id}\n"
        f"tagger {AUTHOR} <{EMAIL}> {TIMESTAMP}\n\n{_message(milestone)}"
    )
    return git(root, "mktag", stdin=text.encode()).decode().strip()


def _ours_or_none(root: Path, name: str) -> str | None:
    """The tag object that an earlier run made; a tag of that name made by someone else is left alone."""
    wanted = "--format=%(objectname) %(taggeremail)"
    line = git(root, "for-each-ref", wanted, f"refs/tags/{name}").decode().strip()
    if not line:
        return None
    oid, _, email = line.partition(" ")
    if email != f"<{EMAIL}>":
        raise MilestoneError(f"a tag {name} exists that this tool did not make; delete it first: git tag -d {name}")
    return oid
