"""A reference entry from the source: the signature as written, then the docstring as Markdown.

For a class: its fields (dataclasses) and then each public method. Nothing is imported and no headings are
made: the page has its own, with ids of its own.
"""

from __future__ import annotations

import ast
import re
import textwrap

from milestones.site.errors import DirectiveError
from milestones.site.source import Definition, SourceFile, excerpt, find, first_line

_SECTIONS = ("Args:", "Raises:", "Returns:", "Yields:")
_DRAWING = re.compile(r"[─│┌┐└┘├┤▶◀▲▼]")


def render(source: SourceFile, qualname: str, members: list[str] | None = None) -> str:
    """Markdown for one class, function or assignment; `members` picks and orders a class's methods."""
    node = find(source, qualname)
    if isinstance(node, ast.ClassDef):
        return _class(source, qualname, node, members)
    if members:
        raise DirectiveError(f"members is for classes, and {qualname} in {source.name} is none")
    if isinstance(node, Definition):
        return _function(source, node)
    return _code(excerpt(source, qualname))


def _class(source: SourceFile, qualname: str, node: ast.ClassDef, members: list[str] | None) -> str:
    head = excerpt(source, qualname, doc=False, head=True)
    parts = [_code(head) if "\n" in head else "", _docstring(node)]  # a head of one line says nothing new
    methods = {stmt.name: stmt for stmt in node.body if isinstance(stmt, ast.FunctionDef | ast.AsyncFunctionDef)}
    if members is None:
        members = [name for name, method in methods.items() if _is_public(method)]
    for name in members:
        if name not in methods:
            raise DirectiveError(f"{source.name} has no {qualname}.{name}")
        parts.append(_function(source, methods[name]))
    return "\n\n".join(part for part in parts if part)


def _is_public(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    if method.name == "__init__":
        return len(method.args.args) + len(method.args.kwonlyargs) > 1
    return not method.name.startswith("_")


def _function(source: SourceFile, node: ast.stmt) -> str:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)  # the callers' branch
    doc = _docstring(node)
    return _code(_signature(source, node)) + (f"\n\n{doc}" if doc else "")


def _signature(source: SourceFile, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The lines from the decorators to the colon, as they stand in the file."""
    begin, end = first_line(source, node), node.body[0].lineno - 1
    if end < node.lineno:  # a body on the line of its def
        return f"def {node.name}({ast.unparse(node.args)})"
    lines = [line.removeprefix(" " * node.col_offset) for line in source.lines[begin:end]]
    while lines and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
        lines.pop()
    return "\n".join(lines).rstrip().removesuffix(":")


def _code(text: str) -> str:
    return fence(text, "python")


def fence(text: str, info: str) -> str:
    """A fenced block whose marks are longer than any run of backticks in the text."""
    runs = [len(run) for run in re.findall(r"`{3,}", text)]
    marks = "`" * max([3, *(run + 1 for run in runs)])
    return f"{marks}{info}\n{text}\n{marks}"


def _docstring(node: ast.stmt) -> str:
    doc = ast.get_docstring(node) if isinstance(node, Definition) else None
    if not doc:
        return ""
    return "\n\n".join(_paragraph(part) for part in re.split(r"\n\s*\n", doc.strip("\n")))


def _paragraph(text: str) -> str:
    """Prose stays prose, `Args:` becomes a list, and what is laid out by hand (drawings) keeps its layout."""
    first, _, rest = text.partition("\n")
    if first in _SECTIONS and rest:
        return f"**{first.removesuffix(':')}**\n\n" + "\n".join(_items(rest))
    if _DRAWING.search(text) or any(line.startswith("  ") for line in text.splitlines()):
        return fence(text, "text")
    return _prose(text)


def _items(text: str) -> list[str]:
    """`name: what` items of a section, one bullet each; deeper lines go on with the one before."""
    lines = textwrap.dedent(text).splitlines()
    joined: list[str] = []
    for line in lines:
        if line.startswith(" ") and joined:
            joined[-1] += " " + line.strip()
        else:
            joined.append(line)
    items = []
    for line in joined:
        name, colon, what = line.partition(": ")
        named = colon and re.fullmatch(r"[*\w]+(, [*\w]+)*", name)
        items.append(f"- `{name}`: {_prose(what)}" if named else f"- {_prose(line)}")
    return items


def _prose(text: str) -> str:
    """Escapes what Markdown would take for markup, outside code spans."""
    return "".join(part if part.startswith("`") else _escape(part) for part in re.split(r"(`[^`]*`)", text))


def _escape(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\*$~^=#])", r"\\\1", text) if re.search(r"[\\*$~^=#]", text) else text
