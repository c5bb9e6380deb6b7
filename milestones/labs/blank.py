"""Empties functions, takes them out of a file, and puts others in their place. Text in, text out.

    def get_new_blocks(self, count, after=0):          def get_new_blocks(self, count, after=0):
        '''`count` free blocks …'''                        '''`count` free blocks …'''
        if count > self.num_free:              ──▶         raise NotImplementedError("exercise m3/01-block-pool: …")
            raise ValueError(…)
        …

Signature, decorators and docstring stay; the body and the comments in it go. A generator stays one.
"""

from __future__ import annotations

import ast
import io
import tokenize

from milestones.spec import MilestoneError

Function = ast.FunctionDef | ast.AsyncFunctionDef
YOURS = "# Yours to write: python -m milestones watch"


def functions(text: str) -> dict[str, list[Function]]:
    """Qualified name -> its definitions: `f`, `Class.method`; functions inside functions are parts of these."""
    found: dict[str, list[Function]] = {}

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                found.setdefault(prefix + child.name, []).append(child)
            elif isinstance(child, ast.ClassDef):
                walk(child, f"{prefix}{child.name}.")
            else:
                walk(child, prefix)

    walk(ast.parse(text), "")
    return found


def find(text: str, name: str, where: str = "the file") -> Function:
    """The one definition of `name`."""
    try:
        found = functions(text).get(name, [])
    except SyntaxError as error:
        raise MilestoneError(f"{where}:{error.lineno}: cannot be read as Python: {error.msg}") from error
    if len(found) != 1:
        raise MilestoneError(f"{where}: must define {name} once, found {len(found)} times")
    return found[0]


def blank(text: str, name: str, message: str, where: str = "the file") -> str:
    """`text` with the body of function `name` replaced by raising NotImplementedError(message)."""
    node = find(text, name, where)
    lines = text.splitlines(keepends=True)
    if ast.get_docstring(node, clean=False) is not None:
        if len(node.body) == 1:
            raise MilestoneError(f"{where}: {name} has no body to write anew")
        begin = node.body[0].end_lineno or 0
        head = lines[:begin]
    else:
        row, column = _colon(lines, node)
        head = [*lines[: row - 1], lines[row - 1][: column + 1].rstrip() + "\n"]
    indent = " " * (node.col_offset + 4)
    if node.body[-1].lineno > node.lineno:
        indent = " " * node.body[-1].col_offset
    body = [f"{indent}{YOURS}\n"]
    body.append(f"{indent}raise NotImplementedError({_quoted(message)})\n")
    if _is_generator(node):
        body.append(f"{indent}yield  # it is a generator\n")
    return "".join([*head, *body, *lines[_end(lines, node) :]])


def source_of(text: str, name: str, where: str = "the file") -> str:
    """The whole definition of `name`, decorators and its comments included, as it stands there."""
    node = find(text, name, where)
    lines = text.splitlines(keepends=True)
    return "".join(lines[_start(node) - 1 : _end(lines, node)])


def replace(text: str, name: str, source: str, where: str = "the file") -> str:
    """`text` with the whole definition of `name` replaced by `source`, which stands at the same depth."""
    node = find(text, name, where)
    lines = text.splitlines(keepends=True)
    return "".join([*lines[: _start(node) - 1], source, *lines[_end(lines, node) :]])


def parameters(text: str, name: str) -> list[str]:
    """The names of a function's parameters: what a wrong solution has to keep."""
    args = find(text, name).args
    every = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]
    return [arg.arg for arg in every if arg is not None]


def _start(node: Function) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _end(lines: list[str], node: Function) -> int:
    """The last line of the function, comments behind its last statement included."""
    end = last = node.end_lineno or node.lineno
    for number, line in enumerate(lines[end:], end + 1):
        code = line.strip()
        if code and not (code.startswith("#") and len(line) - len(line.lstrip()) > node.col_offset):
            break
        if code:
            last = number
    return last


def _colon(lines: list[str], node: Function) -> tuple[int, int]:
    """Row (from 1) and column of the colon that ends the signature."""
    depth = 0
    source = "".join(lines[node.lineno - 1 : node.end_lineno])
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        depth += (token.string in "([{") - (token.string in ")]}") if token.type == tokenize.OP else 0
        if token.type == tokenize.OP and token.string == ":" and depth == 0:
            return node.lineno - 1 + token.start[0], token.start[1]
    raise AssertionError("a function has a colon")


def _is_generator(node: Function) -> bool:
    """Whether a yield belongs to the function itself and not to one inside it."""
    waiting: list[ast.AST] = list(node.body)
    while waiting:
        child = waiting.pop()
        if isinstance(child, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(child, (Function, ast.Lambda, ast.ClassDef)):
            waiting += ast.iter_child_nodes(child)
    return False


def _quoted(message: str) -> str:
    return '"' + message.replace("\\", "\\\\").replace('"', '\\"') + '"'
