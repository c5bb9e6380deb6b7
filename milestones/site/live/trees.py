"""What a page gets of the repository, as archives: a milestone's core, or its exercises with all that judges them."""

from __future__ import annotations

import ast
import io
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from milestones.labs.exercise import LABS, OWN
from milestones.site.errors import DirectiveError
from milestones.site.source import ROOT, locate

HERE = Path(__file__).parent
# What the driver imports of each milestone; the newest, "root", has the simulator.
WATCHED = ["folovllm.config", "folovllm.core.scheduler", "folovllm.engine.builder.budgets", "folovllm.sampling_params"]
TREES = {**dict.fromkeys(("m2", "m3", "m5", "m6"), WATCHED), "root": ["folovllm.simulator.report"]}
DRAWING = ["__init__.py", "example_picture.py", "example_svg.py", "example_trace.py"]
EXERCISES = ("m0", "m1", "m2", "m3")
"""Milestones whose exercises are done in their pages, where they need nothing but Python."""
JUDGE = ["lab_judge", "support"]  # beside the package, for the judges


def tree_zip(tree: str) -> bytes:
    """What the driver needs of a milestone, or of the root: the modules that it imports, and the drawing."""
    files = {path: _file(path, tree).read_bytes() for path in _modules(TREES[tree], tree)[0]}
    return _zip(files | {f"workshop/{name}": (ROOT / "workshop" / name).read_bytes() for name in DRAWING})


def handed_out(milestone: str) -> dict[str, bytes]:
    """A milestone's exercises, and the modules that the judges of those which are done in a page import, solved."""
    folder = ROOT / LABS / milestone
    files = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}
    for path in sorted(folder.glob("[0-9]*")):
        if is_pure(f"{milestone}/{path.name}"):
            files |= {name: _file(name, milestone).read_bytes() for name in _modules(_judged(path), milestone)[0]}
            files |= _brought(path)
    return {name: data for name, data in files.items() if "__pycache__" not in name}


def exercises_zip(milestone: str) -> bytes:
    """The same with what grades them."""
    modules = _modules(["milestones.labs.told"], "root")[0]
    files = handed_out(milestone) | {name: _file(name, "root").read_bytes() for name in modules}
    inside = ROOT / LABS / "inside"
    beside = [inside / "lab_judge.py", inside / "lab_values.py", *(ROOT / LABS / milestone).glob("*.py")]
    return _zip(files | {path.name: path.read_bytes() for path in beside})


@cache
def is_pure(exercise: str) -> bool:
    """Whether the judge of `exercise`, such as m3/01-block-pool, and all that it imports need nothing but Python."""
    milestone = exercise.partition("/")[0]
    foreign = _modules(_judged(ROOT / LABS / exercise), milestone)[1]
    return milestone in EXERCISES and not foreign - set(JUDGE) - sys.stdlib_module_names


def _judged(folder: Path) -> list[str]:
    """What an exercise's judge imports, what that has of the milestone's other judges, and what an open task does."""
    texts = [(folder / "judge.py").read_text(encoding="utf-8")]
    beside = folder.parent / "support.py"
    texts += [path.read_text(encoding="utf-8") for path in (beside, folder / OWN) if path.is_file()]
    return [module for text in texts for module in _imports(text)]


def _brought(folder: Path) -> dict[str, bytes]:
    """The file that an open task brings."""
    own = folder / OWN
    return (
        {tomllib.loads((folder / "exercise.toml").read_text(encoding="utf-8"))["file"]: own.read_bytes()}
        if own.is_file()
        else {}
    )


def _zip(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(path), data)  # of 1980: the same files make the same archive
    return buffer.getvalue()


def _modules(modules: Iterable[str], tree: str) -> tuple[set[str], set[str]]:
    """The files of the repository that `modules` import at their top level, and what those import in turn; and the
    names of all other packages."""
    found, foreign, waiting = {"folovllm/__init__.pyi"}, set[str](), list(modules)
    while waiting:
        module = waiting.pop()
        if not module.startswith(OURS):
            foreign.add(module.partition(".")[0])
        path = _path(module, tree)
        if path is None or path in found:
            continue
        found.add(path)
        waiting += [module.rpartition(".")[0]] if "." in module else []
        waiting += _imports(_file(path, tree).read_text(encoding="utf-8"))
    return found, foreign


OURS = ("folovllm", "milestones")


def _path(module: str, tree: str) -> str | None:
    """None: a name in a module, or a module of other packages."""
    for path in (f"{module.replace('.', '/')}.py", f"{module.replace('.', '/')}/__init__.py"):
        if module.startswith(OURS):
            with suppress(DirectiveError):
                _file(path, tree)
                return path
    return None


def _file(path: str, tree: str) -> Path:
    """Raises DirectiveError: there is no such file."""
    return locate(path, None if tree == "root" or path.startswith("milestones/") else tree)


def _imports(text: str) -> Iterator[str]:
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
