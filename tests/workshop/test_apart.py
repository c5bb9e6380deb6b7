"""The workshop stands beside the package: no milestone's tree holds it, and none of their code asks for it."""

from __future__ import annotations

import ast

import pytest

from milestones.chain import Course
from milestones.sources import File, repository_root, working_tree

COURSE = Course.load(working_tree(repository_root()))


def imported(file: File) -> set[str]:
    """The top-level packages that a module names in its imports, wherever in it they stand."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.data)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("milestone", COURSE.milestones, ids=lambda milestone: milestone.id)
def test_no_tree_holds_or_imports_the_workshop(milestone) -> None:  # type: ignore[no-untyped-def]
    tree = COURSE.tree(milestone.number)
    assert not [path for path in tree if path.startswith("workshop/")]
    assert not [path for path, file in tree.items() if path.endswith(".py") and "workshop" in imported(file)]


def test_an_import_inside_a_function_is_seen() -> None:
    code = b"def f():\n    from workshop.glossary import ask\n    import os.path\n"
    assert imported(File(code)) == {"workshop", "os"}
