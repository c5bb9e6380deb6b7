"""Which imports of a tree lead nowhere, read from the text without running it.

Running a tree proves more, but costs seconds for each; this finds what is missing in all of them at once.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from milestones.sources import File

TOPS = ("folovllm", "tests")


@dataclass(frozen=True)
class Module:
    """What one file defines at its top level, and what it imports of its own tree (inside functions too)."""

    defines: frozenset[str]
    imports: tuple[tuple[str, str | None], ...]  # (module, name)
    lazy: Mapping[str, str]  # names that its __getattr__ answers -> the modules that they come from


def unresolved_imports(tree: Mapping[str, File]) -> list[str]:
    """Imports of a module that is not in the tree, or of a name that its module does not define."""
    names = {module_name(path): path for path in tree if path.endswith(".py") and path.startswith(TOPS)}
    modules = {name: read_module(tree[path].data) for name, path in names.items()}
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
            elif target is None or (wanted not in target.defines and target.lazy.get(wanted) not in modules):
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
    return Module(frozenset(defines), tuple(imports), _table(tree) if "__getattr__" in defines else {})


def _table(tree: ast.Module) -> dict[str, str]:
    """Top-level dictionaries of names by module: public names, where they load on first use."""
    pairs: dict[str, str] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            for key, value in zip(statement.value.keys, statement.value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple):
                    pairs |= {str(name.value): str(key.value) for name in value.elts if isinstance(name, ast.Constant)}
    return pairs


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
