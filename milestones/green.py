"""Remembers which trees passed: what has not changed since its last green run need not run again.

The key is a digest of all that a tree's tests can see: its files, the tests that were named, and the versions that
compute. The record is in `.cache/`, which is not committed, so a fresh clone remembers nothing.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from importlib.metadata import version
from pathlib import Path

from milestones.sources import Snapshot

FILE = ".cache/verified.json"
COMPUTE = ("torch", "transformers", "pytest", "triton", "numpy")
MOST = 500  # entries that are kept, the newest


class GreenRuns:
    def __init__(self, root: Path) -> None:
        self.path = root / FILE
        try:
            self.entries: dict[str, float] = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self.entries = {}

    def has(self, key: str) -> bool:
        return key in self.entries

    def add(self, key: str) -> None:
        """Called after a green run, by one thread at a time."""
        self.entries[key] = time.time()
        newest = sorted(self.entries.items(), key=lambda entry: -entry[1])[:MOST]
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text(json.dumps(dict(newest)), encoding="utf-8")


def digest(tree: Snapshot, paths: list[str]) -> str:
    """Of a tree and of the tests in it that are run."""
    state = hashlib.sha256()
    state.update(repr((sorted(paths), platform.python_version(), platform.processor(), platform.machine())).encode())
    state.update(repr([(name, _version(name)) for name in COMPUTE]).encode())
    for path, file in sorted(tree.items()):
        state.update(f"{path}\0{len(file.data)}\0".encode())
        state.update(file.data)
    return state.hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except ModuleNotFoundError:
        return ""
