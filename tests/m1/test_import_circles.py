"""No two files of the engine need each other, not even for their types: each can be read after those it imports."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import folovllm

PACKAGE = Path(folovllm.__file__).parent


def imports(modules: dict[str, str]) -> dict[str, set[str]]:
    """Module name -> the modules that its source names in an import, wherever in it they stand."""
    graph: dict[str, set[str]] = {}
    for name, source in modules.items():
        found = set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        graph[name] = (found & modules.keys()) - {name}
    return graph


def test_the_files_of_the_engine_stand_in_an_order() -> None:
    modules = {
        ".".join(("folovllm", *path.relative_to(PACKAGE).with_suffix("").parts)): path.read_text(encoding="utf-8")
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
    }
    order = list(TopologicalSorter(imports(modules)).static_order())
    assert order.index("folovllm.sample.row") < order.index("folovllm.sample.metadata")


def test_a_circle_of_types_alone_is_seen() -> None:
    a = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.b import B\n"
    with pytest.raises(CycleError):
        list(TopologicalSorter(imports({"p.a": a, "p.b": "def f():\n    import p.a\n"})).static_order())
