"""Where the files come from: the working tree, or a commit.

Both are read into one plain `dict[path, File]`, so that everything after this is a function of a
dictionary, and a test can write one down. `verify` and `checkout` look at the working tree (what you see
is what you get); `tag` looks at HEAD.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from milestones.spec import MilestoneError

# One author and one date for all that the tool commits: the same content has the same hashes in every clone.
AUTHOR = "FoloVLLM milestones"
EMAIL = "milestones@folovllm.invalid"
DATE = "2026-01-01T00:00:00+00:00"
TIMESTAMP = "1767225600 +0000"  # DATE, the way a tag object writes it
IDENTITY = {
    "GIT_AUTHOR_NAME": AUTHOR,
    "GIT_AUTHOR_EMAIL": EMAIL,
    "GIT_AUTHOR_DATE": DATE,
    "GIT_COMMITTER_NAME": AUTHOR,
    "GIT_COMMITTER_EMAIL": EMAIL,
    "GIT_COMMITTER_DATE": DATE,
}


@dataclass(frozen=True)
class File:
    """A file's content, which is what makes two equal; `oid` is git's name for it where git has it."""

    data: bytes
    executable: bool = False
    oid: str | None = field(default=None, compare=False)

    @property
    def mode(self) -> str:
        return "100755" if self.executable else "100644"


Snapshot = Mapping[str, File]


def git(root: Path, *args: str, stdin: bytes | None = None, env: Mapping[str, str] | None = None) -> bytes:
    """Run git in `root`. Variables that would point it at another repository (as in a hook) are left out."""
    clean = {k: v for k, v in os.environ.items() if k not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")}
    try:
        done = subprocess.run(
            ["git", *args],
            cwd=root,
            input=stdin,
            capture_output=True,
            env={**clean, **(env or {})},
            check=False,
        )
    except FileNotFoundError as error:
        raise MilestoneError("git is needed, and was not found on this machine") from error
    if done.returncode != 0:
        raise MilestoneError(f"git {args[0]} failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def repository_root() -> Path:
    """The folder that holds this package."""
    return Path(__file__).resolve().parent.parent


def working_tree(root: Path) -> dict[str, File]:
    """Every file that git tracks, and every new one that it does not ignore, as it lies on disk. On a machine without
    git, and in an archive of the repository: every file but what tools leave behind."""
    if shutil.which("git") and (root / ".git").exists():
        listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split(b"\0")
        names = {os.fsdecode(entry) for entry in listed if entry}
    else:
        names = set()
        left = {"__pycache__", "build", "dist", ".git", ".DS_Store"}
        for place, below, files in os.walk(root):
            below[:] = [name for name in below if name not in left and not name.startswith(".")]
            names |= {(Path(place) / name).relative_to(root).as_posix() for name in files if name not in left}
    snapshot: dict[str, File] = {}
    for name in sorted(names):
        path = root / name
        if path.is_file() and not path.is_symlink():
            snapshot[name] = File(path.read_bytes(), executable=os.access(path, os.X_OK))
    return snapshot


def commit(root: Path, revision: str = "HEAD") -> dict[str, File]:
    """Every file of a commit."""
    entries = []
    for line in git(root, "ls-tree", "-r", "-z", revision).split(b"\0"):
        if line:
            meta, _, path = line.partition(b"\t")
            mode, kind, oid = meta.decode().split()
            if kind == "blob" and mode != "120000":
                entries.append((os.fsdecode(path), mode, oid))
    blobs = git(root, "cat-file", "--batch", stdin="".join(f"{oid}\n" for _, _, oid in entries).encode())
    snapshot: dict[str, File] = {}
    at = 0
    for name, mode, oid in entries:
        end_of_header = blobs.index(b"\n", at)  # "<oid> blob <size>\n<data>\n"
        start = end_of_header + 1
        stop = start + int(blobs[at:end_of_header].split()[2])
        snapshot[name] = File(blobs[start:stop], executable=mode == "100755", oid=oid)
        at = stop + 1
    return snapshot


def uncommitted(root: Path) -> list[str]:
    """Paths that differ between HEAD and the working tree."""
    status = git(root, "status", "--porcelain", "-z", "--no-renames").split(b"\0")
    return [os.fsdecode(entry[3:]) for entry in status if entry]


def merge_file(ours: bytes, base: bytes, theirs: bytes, *options: str) -> subprocess.CompletedProcess[bytes]:
    """What `git merge-file` makes of three versions of a file; its exit status is the number of conflicts."""
    with tempfile.TemporaryDirectory() as scratch:
        files = [Path(scratch) / name for name in ("ours", "base", "theirs")]
        for file, data in zip(files, (ours, base, theirs), strict=True):
            file.write_bytes(data)
        return subprocess.run(
            ["git", "merge-file", "--stdout", *options, *map(str, files)], capture_output=True, check=False
        )


def merge(mine: bytes, before: bytes, after: bytes, *options: str) -> bytes | None:
    """Both changes in one text, or None where they meet. --ours: `mine` where they meet."""
    done = merge_file(mine, before, after, *options)
    return done.stdout if done.returncode == 0 else None
