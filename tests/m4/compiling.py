"""Faults planted into the source of a kernel: is there a test that finds them?"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


def planted(module: ModuleType, right: str, wrong: str, folder: Path) -> ModuleType:
    """A copy of `module` with `wrong` where `right` stood, in one place. Triton reads a kernel's source from disk."""
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    assert source.count(right) == 1, f"{module.__name__} has {right!r} {source.count(right)} times"
    path = folder / f"{module.__name__.rpartition('.')[2]}.py"
    path.write_text(source.replace(right, wrong), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(module.__name__, path)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


def as_compiled(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    """Let the interpreter run what is compiled for a GPU: `for` instead of `while`, in float32. It takes a tensor as a
    range's end from Triton 3.7 on."""
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7):
        pytest.skip(f"Triton {triton.__version__}: its interpreter's range takes no tensor as the end")
    for module in modules:
        monkeypatch.setattr(module, "INTERPRETED", False)
