"""Which imports of a tree lead nowhere, read from the text without running it.

Running a tree proves more, but costs seconds for each; this finds what is missing in all of them at once.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from milestones.sources import File
from milestones.spec import MilestoneError

TOPS = ("folovllm", "tests")


@dataclass(frozen=True)
class Module:
    """What one file defines at its top level, and what it imports of its own tree (inside functions too)."""

    defines: frozenset[str]
    imports: tuple[tuple[str, str | None], ...]  # (module, name)


def check_syntax(snapshot: Mapping[str, File]) -> None:
    """Name every file, stored versions too, whose imports cannot be read because it does not parse."""
    found = []
    for path, file in snapshot.items():
        try:
            if path.endswith(".py") and re.sub(r"^milestones/m\d+/", "", path).startswith((*TOPS, "examples")):
                read_module(file.data)
        except SyntaxError as error:
            found.append(f"{path}:{error.lineno} does not parse: {error.msg}")
    if found:
        raise MilestoneError("\n  ".join(found))


def unresolved_imports(tree: Mapping[str, File]) -> list[str]:
    """Imports of a module that is not in the tree, or of a name that its module does not define."""
    names = {module_name(path): path for path in tree if path.endswith(".py") and path.startswith(TOPS)}
    modules = {name: read_module(tree[path].data) for name, path in names.items()}
    lazy = {f"{name}.{public}": home for name, path in names.items() for public, home in _stub(tree.get(f"{path}i"))}
    packages = {name.rpartition(".")[0] for name in names}
    packages |= {".".join(name.split(".")[:end]) for name in names for end in range(1, name.count(".") + 1)}
    found = []
    for name, path in names.items():
        for module, wanted in modules[name].imports:
            target = modules.get(module)
            if target is None and module not in packages:
                found.append(f"{path} imports {module}, which is not there yet")
            elif wanted is None or f"{module}.{wanted}" in modules or f"{module}.{wanted}" in packages:
                continue
            elif target is None or (wanted not in target.defines and lazy.get(f"{module}.{wanted}") not in modules):
                found.append(f"{path} imports {wanted} from {module}, which does not have it yet")
    return list(dict.fromkeys(found))


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def read_module(data: bytes) -> Module:
    tree = ast.parse(data)
    imports: list[tuple[str, str | None]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in TOPS:
            imports += [(node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            imports += [(alias.name, None) for alias in node.names if alias.name.partition(".")[0] in TOPS]
    defines = {name for statement in tree.body for name in _bound(statement)}
    return Module(frozenset(defines), tuple(imports))


def _stub(file: File | None) -> list[tuple[str, str]]:
    """Names that a module loads on first use, with their modules: its stub (`.pyi`) imports them."""
    imports = read_module(file.data).imports if file is not None else ()
    return [(name, module) for module, name in imports if name is not None]


def _bound(statement: ast.stmt) -> list[str]:
    """Names that a statement of a module's top level binds, those under `if` and `try` among them."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
    inner = [child for child in ast.walk(statement) if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)]
    names = [name.id for name in inner]
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            names += _bound(child)
    return names
