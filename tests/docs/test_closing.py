"""The last page names methods of this engine that there are, beside vLLM's."""

from __future__ import annotations

import ast
import re

import pytest

from milestones.site.source import ROOT


def defined() -> set[str]:
    """Every class and function at the top of a file of folovllm, and every `Class.method`."""
    found: set[str] = set()
    for path in (ROOT / "folovllm").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found.add(node.name)
            if isinstance(node, ast.ClassDef):
                methods = (each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
                found |= {f"{node.name}.{name}" for name in methods}
    return found


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_life_of_a_request_goes_through_methods_that_there_are(language: str) -> None:
    text = (ROOT / f"docs/{language}/closing.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.partition('<a id="life">')[2].splitlines() if line.startswith("| ")][1:]
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row[3])]
    assert len(names) > len(rows) > 10
    assert set(names) <= defined()
