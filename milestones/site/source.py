"""Finds a piece of Python source by its qualified name, without importing it.

A note shows `Sequence.fork`, not lines 120 to 140: names survive edits, line numbers do not. The file is
parsed with `ast`, the piece is cut out of the text itself (comments and blank lines stay as they were
written), and a name that is no longer there is an error, so that a page can never show code that has gone.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from milestones.site.errors import DirectiveError

ROOT = Path(__file__).resolve().parents[2]

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
MODULE_DOC = "__doc__"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A parsed file: its path as a page names it, its lines, its tree."""

    name: str
    lines: list[str]
    tree: ast.Module

    @property
    def text(self) -> str:
        return "\n".join(self.lines).strip("\n")


def locate(path: str, milestone: str | None = None) -> Path:
    """The file that a page means by `path`, at one milestone if it names one."""
    if milestone is None:
        found = (ROOT / path).resolve()
    else:
        if not re.fullmatch(r"m[0-9]+", milestone):
            raise DirectiveError(f"milestone must look like @m0, got @{milestone}")
        found = _resolve(path, milestone)
    if not found.is_relative_to(ROOT):
        raise DirectiveError(f"{path} lies outside the repository")
    if not found.is_file():
        raise DirectiveError(f"{path} does not exist" + (f" at {milestone}" if milestone else ""))
    return found


def _resolve(path: str, milestone: str) -> Path:
    """Chain resolution: the first of milestones/mK, m(K+1), ... that holds the file, else the root's."""
    number = int(milestone[1:])
    while (folder := ROOT / "milestones" / f"m{number}").is_dir():
        if (folder / path).is_file():
            return folder / path
        number += 1
    return ROOT / path


@cache
def tree_of(text: str) -> ast.Module:
    """Of a file's text; many marks name the same few files."""
    return ast.parse(text)


def parse(path: str, milestone: str | None = None) -> SourceFile:
    text = locate(path, milestone).read_text(encoding="utf-8")
    try:
        tree = tree_of(text)
    except SyntaxError as error:
        raise DirectiveError(f"{path} is not valid Python: {error}") from error
    return SourceFile(path, text.splitlines(), tree)


def find(source: SourceFile, qualname: str) -> ast.stmt:
    """The statement that defines `qualname`: a class, a function, or an assignment."""
    body: Sequence[ast.stmt] = source.tree.body
    node: ast.stmt | None = None
    walked: list[str] = []
    for part in qualname.split("."):
        names = {name: stmt for stmt, name in _definitions(body)}
        if part not in names:
            where = ".".join(walked) or source.name
            raise DirectiveError(f"{source.name} has no {qualname}: no {part!r} in {where}" + _hint(part, names))
        node = names[part]
        walked.append(part)
        body = node.body if isinstance(node, Definition) else []
    assert node is not None  # split() yields at least one part
    return node


def _hint(part: str, names: dict[str, ast.stmt]) -> str:
    close = difflib.get_close_matches(part, names, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _definitions(body: Sequence[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    for stmt in body:
        if isinstance(stmt, Definition):
            yield stmt, stmt.name
        elif isinstance(stmt, ast.Assign):
            yield from ((stmt, target.id) for target in stmt.targets if isinstance(target, ast.Name))
        elif isinstance(stmt, ast.AnnAssign) and isinstance(stmt.target, ast.Name):
            yield stmt, stmt.target.id
        elif isinstance(stmt, ast.If | ast.Try | ast.With):
            yield from _definitions(stmt.body)
            yield from _definitions(getattr(stmt, "orelse", []))


def first_line(source: SourceFile, node: ast.stmt) -> int:
    """Index of the first line of `node`, with its decorators and the comment that sits right on top of it."""
    start = node.lineno
    if isinstance(node, Definition) and node.decorator_list:
        start = min(decorator.lineno for decorator in node.decorator_list)
    index = start - 1
    comment = " " * node.col_offset + "#"
    while index > 0 and source.lines[index - 1].startswith(comment):
        index -= 1
    return index


def excerpt(source: SourceFile, qualname: str, *, doc: bool = True, head: bool = False) -> str:
    """The text of `qualname`, moved to column 0; `head` cuts a class before its first method."""
    if qualname == MODULE_DOC:
        docstring = ast.get_docstring(source.tree, clean=False)  # at column 0 already, drawings and all
        if docstring is None:
            raise DirectiveError(f"{source.name} has no module docstring")
        return docstring.strip("\n")
    node = find(source, qualname)
    first, last = first_line(source, node), node.end_lineno or node.lineno
    if head:
        last = _head_end(source, qualname, node)
    dropped = set() if doc else _docstring_lines(source, node)
    kept = [source.lines[i] for i in range(first, last) if i not in dropped]
    margin = " " * node.col_offset
    return "\n".join(line.removeprefix(margin) for line in kept).rstrip()


def _head_end(source: SourceFile, qualname: str, node: ast.stmt) -> int:
    if not isinstance(node, ast.ClassDef):
        raise DirectiveError(f"head is for classes, and {qualname} in {source.name} is none")
    for stmt in node.body:
        if isinstance(stmt, Definition):
            return first_line(source, stmt)
    return node.end_lineno or node.lineno


def _docstring_lines(source: SourceFile, node: ast.stmt) -> set[int]:
    """Line indexes of every docstring in `node`, with the blank line that follows each."""
    lines: set[int] = set()
    for inner in ast.walk(node):
        # A body that is nothing but its docstring keeps it: without one it would not be Python.
        if isinstance(inner, Definition) and len(inner.body) > 1 and ast.get_docstring(inner) is not None:
            doc = inner.body[0]
            end = doc.end_lineno or doc.lineno
            lines.update(range(doc.lineno - 1, end))
            if end < len(source.lines) and not source.lines[end].strip():
                lines.add(end)
    return lines
