"""What is dormant in a tree: code that waits for a later milestone, or for nobody.

    empty        a method whose body is only a docstring, `pass` or `...`; not a Protocol's, not an abstract one
    single base  a class with one subclass, of which nothing makes an instance or passes it on
    unread       an attribute that is written and never read
    unwritten    a private attribute that keeps the constant it begins with

All of it is seen in the syntax, so that a name means every attribute of that name: what is found is dormant, and some
of what is dormant is not found. A public attribute may be read by tests, examples and users; `milestones/dormant.toml`
lists what stays, each with its reason.
"""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass, field
from functools import cache

from milestones.chain import Course
from milestones.sources import Snapshot

LIST = "milestones/dormant.toml"


@dataclass
class Facts:
    """What one file says."""

    empty: set[str] = field(default_factory=set)  # "Class.method"
    bases: dict[str, set[str]] = field(default_factory=dict)  # of each class
    own: dict[str, bool] = field(default_factory=dict)  # "Class.attribute" -> whether it begins with a constant
    values: set[str] = field(default_factory=set)  # names that occur as a value: called, passed, returned
    read: set[str] = field(default_factory=set)  # attributes; also strings, for getattr
    changed: set[str] = field(default_factory=set)  # attributes that get another value, or may be given away


def problems(course: Course) -> list[str]:
    """What is dormant in some tree and not on the list, and what is on the list and dormant in none."""
    listed: dict[str, str] = {}
    if LIST in course.snapshot:
        listed = tomllib.loads(course.snapshot[LIST].data.decode())
    trees: dict[str, list[str]] = {}
    for milestone in course.milestones:
        for name in dormant(course.tree(milestone.number)):
            trees.setdefault(name, []).append(milestone.id)
    found = [f"{name} in {', '.join(ids)}: take it out, or give {LIST} the reason" for name, ids in trees.items()]
    stale = [f"{LIST}: {name} is dormant in no tree" for name in listed if name not in trees]
    return [line for line, name in zip(found, trees, strict=True) if name not in listed] + stale


def dormant(tree: Snapshot) -> list[str]:
    """Names such as `Scheduler.forget: empty`, of the package in `tree`."""
    package: list[Facts] = []
    around: list[Facts] = []
    for path, file in tree.items():
        if path.endswith(".py") and path.startswith(("folovllm/", "tests/", "examples/")):
            (package if path.startswith("folovllm/") else around).append(_facts(file.data))
    read = set().union(*(f.read for f in package))
    public = set().union(read, *(f.read for f in around))
    changed = set().union(*(f.changed for f in [*package, *around]))
    values = set().union(*(f.values for f in package))
    found = [f"{name}: empty" for f in package for name in f.empty]
    children: dict[str, set[str]] = {}
    for f in package:
        for name, bases in f.bases.items():
            for base in bases:
                children.setdefault(base, set()).add(name)
    known = {name for f in package for name in f.bases}
    found += [f"{name}: single base" for name in known if len(children.get(name, ())) == 1 and name not in values]
    for f in package:
        for name, constant in f.own.items():
            attribute = name.rpartition(".")[2]
            if attribute not in (read if attribute.startswith("_") else public):
                found.append(f"{name}: unread")
            elif constant and attribute.startswith("_") and attribute not in changed:
                found.append(f"{name}: unwritten")
    return sorted(set(found))


@cache
def _facts(source: bytes) -> Facts:
    """Most files are the same in many trees."""
    tree, facts = ast.parse(source), Facts()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            _class(node, facts)
        elif isinstance(node, ast.Attribute):
            facts.values.add(node.attr)
            if isinstance(node.ctx, ast.Load):
                facts.read.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            facts.read.add(node.value)
            facts.values.add(node.value.rpartition(".")[2])  # a table of classes by their import paths
        elif isinstance(node, ast.keyword) and node.arg:
            facts.changed.add(node.arg)
        elif isinstance(node, ast.MatchClass):
            facts.read.update(node.kwd_attrs)
    _changes(tree, facts)
    _values(tree, facts)
    return facts


def _class(node: ast.ClassDef, facts: Facts) -> None:
    bases = {name for base in node.bases if (name := _name(base))}
    facts.bases[node.name] = bases
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            loose = "Protocol" in bases or any(
                "abstract" in ast.unparse(d) or "overload" in ast.unparse(d) for d in item.decorator_list
            )
            if not loose and all(
                isinstance(line, ast.Pass) or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
                for line in item.body
            ):
                facts.empty.add(f"{node.name}.{item.name}")
            for line in ast.walk(item):
                if isinstance(line, ast.Assign | ast.AnnAssign) and line.value:
                    begins = item.name == "__init__" and _is_constant(line.value)
                    for target in line.targets if isinstance(line, ast.Assign) else [line.target]:
                        if isinstance(target, ast.Attribute) and _name(target.value) == "self":
                            facts.own[f"{node.name}.{target.attr}"] = begins
                            facts.changed.update([] if begins else [target.attr])
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and "Structure" not in bases:
            facts.own[f"{node.name}.{item.target.id}"] = False


def _changes(tree: ast.Module, facts: Facts) -> None:
    """Attributes of other objects that are set, and those whose value is used otherwise than read in place."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign | ast.Delete | ast.For | ast.With | ast.Call | ast.Return | ast.Assign):
            inner = [part for part in ast.walk(node) if isinstance(part, ast.Attribute)]
            if isinstance(node, ast.Assign):  # `self.x = 0` alone is the beginning; any other may be a change
                inner = [
                    part
                    for part in inner
                    if not (isinstance(part.ctx, ast.Store) and _name(part.value) == "self") or len(inner) > 1
                ]
            facts.changed.update(
                part.attr
                for part in inner
                if not isinstance(node, ast.For | ast.With) or isinstance(part.ctx, ast.Store)
            )


def _values(tree: ast.Module, facts: Facts) -> None:
    """Names loaded elsewhere than as a base, in an annotation or for isinstance."""
    aside: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.ClassDef):
            parts = list(node.bases)
        elif isinstance(node, ast.arg | ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts = [node.returns]
        elif isinstance(node, ast.Call) and _name(node.func) in ("isinstance", "issubclass", "super"):
            parts = list(node.args[1:])
        aside.update(id(inner) for part in parts if part for inner in ast.walk(part))
    facts.values.update(
        node.id for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in aside
    )  # fmt: skip


def _name(node: ast.expr) -> str:
    """The last part of a dotted name; of `Base[int]`, Base."""
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_constant(node: ast.expr | None) -> bool:
    empty = isinstance(node, ast.List | ast.Dict | ast.Tuple) and not list(ast.iter_child_nodes(node))[1:]
    return empty or isinstance(node, ast.Constant)
