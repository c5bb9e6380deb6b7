"""The engine that is taught is the engine that ships."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from milestones.chain import AFTER, Course, comes_after
from milestones.site.source import ROOT
from milestones.sources import working_tree

pytestmark = pytest.mark.always
COURSE = Course.load(working_tree(ROOT))
ROOMS = (
    "attention", "core", "csrc", "distributed", "engine", "layers", "models", "quantize", "sample", "spec_decode",
    "utils", "worker",
)  # fmt: skip
# They import what stands around the engine: the command line, and its public names.
OF_THE_ROOT = {f"folovllm/{name}" for name in ("__init__.pyi", "__main__.py", "entrypoints/commands.py")}


def test_the_last_milestones_tree_has_the_engine_as_it_is_at_the_root_byte_for_byte() -> None:
    tree = COURSE.tree(COURSE.milestones[-1].number)
    at_root = {
        path: file for path, file in COURSE.snapshot.items() if path.startswith("folovllm/") and not comes_after(path)
    }
    differs = {path for path in at_root.keys() | tree.keys() if at_root.get(path) != tree.get(path)}
    assert {path for path in differs if path.startswith("folovllm/")} == OF_THE_ROOT


def test_no_file_of_an_engines_room_comes_after_the_last_milestone() -> None:
    rooms = {f"folovllm/{room}/" for room in ROOMS}
    assert [path for path in COURSE.snapshot if comes_after(path) and path.startswith(tuple(rooms))] == []


def test_what_stands_around_the_engine_is_whole_folders() -> None:
    package = [pattern for pattern in AFTER if pattern.startswith(("folovllm/", "tests/"))]
    assert [pattern for pattern in package if PurePosixPath(pattern).name != "**"] == []
