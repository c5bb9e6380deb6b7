"""What a judge is written with, `from lab_judge import expect, invariant, raises`, and what writes down how it went.

    @invariant(2)
    def test_the_neighbour_comes_first():
        pool = BlockPool(8)
        pool.get_new_blocks(2)
        expect(pool.get_new_blocks(2, after=2), [3, 4])

It imports no pytest: a page of the site runs the same judges without it (milestones/site/live/exercise_driver.py).
"""

from __future__ import annotations

import ast
import linecache
import math
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import lab_values

TREE = Path(os.environ.get("LAB_TREE", ".")).resolve()
CHINESE = os.environ.get("LAB_LANGUAGE") == "zh"


def say(english: str, chinese: str) -> str:
    """What a learner reads of an expectation, in the language of the folder."""
    return chinese if CHINESE else english


class MismatchError(AssertionError):
    """An expectation that did not hold. answer: (expected, got) as known mistakes are recorded, in no language."""

    def __init__(self, got: str, expected: str, answer: tuple[str, str] | None = None) -> None:
        super().__init__(say(f"expected {expected}, got {got}", f"期望 {expected}，实际 {got}"))
        self.got, self.expected, self.answer = got, expected, answer or (expected, got)


def invariant(number: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Says which numbered invariant of the task a test judges."""

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        test.lab_invariant = number  # type: ignore[attr-defined]
        return test

    return mark


def expect(got: Any, expected: Any) -> None:
    """Fails unless the two are equal."""
    if not lab_values.equal(got, expected):
        raise MismatchError(*lab_values.show_both(got, expected))


def expect_close(got: Any, expected: Any, *, atol: float = 1e-5) -> None:
    """Fails unless two numbers, lists or tensors have one shape and differ by at most `atol` everywhere."""
    shapes = lab_values.shape(got), lab_values.shape(expected)
    if shapes[0] != shapes[1]:
        word = say("shape", "形状")
        raise MismatchError(f"{word} {shapes[0]}", f"{word} {shapes[1]}", (f"shape {shapes[1]}", f"shape {shapes[0]}"))
    worst, at = lab_values.worst(got, expected)
    if worst <= atol:
        return
    flat = lab_values.flat(got)
    if len(flat) <= lab_values.MOST_ELEMENTS:
        raise MismatchError(*lab_values.show_both(got, expected))
    place: list[int] = []
    rest = at
    for size in reversed(lab_values.shape(got) or []):
        place.insert(0, rest % size)
        rest //= size
    wrong = sum(not abs(a - b) <= atol for a, b in zip(flat, lab_values.flat(expected), strict=True))
    of = say(
        f"at {place}, where it is worst; {wrong} of {len(flat)} elements differ",
        f"位于 {place}，此处相差最大；{len(flat)} 个元素中有 {wrong} 个不同",
    )
    texts = f"{flat[at]:.6g}", f"{lab_values.flat(expected)[at]:.6g}"
    raise MismatchError(f"{texts[0]}  {of}", texts[1], (texts[1], f"{texts[0]} at {place}"))


MEASURED: list[float] = []


def measure(figure: float, *, at_most: float = math.inf, at_least: float = -math.inf) -> None:
    """The figure of an open task, which `check` shows beside ours and the best known. Fails where it misses a bound."""
    MEASURED.append(float(f"{figure:.4g}"))
    if not at_least <= figure <= at_most:
        most = say(f"at most {at_most:g}", f"至多 {at_most:g}")
        least = say(f"at least {at_least:g}", f"至少 {at_least:g}")
        raise MismatchError(f"{figure:g}", least if at_most == math.inf else most, ("bound", f"{figure:g}"))


@contextmanager
def raises(kind: type[BaseException], says: str = "") -> Iterator[None]:
    """Fails unless the block raises `kind` with `says` somewhere in its text."""
    wanted = kind.__name__ + (say(f" that says {says!r}", f"，文本含 {says!r}") if says else "")
    try:
        yield
    except NotImplementedError:
        raise
    except kind as error:
        if says not in str(error):
            came = f"{type(error).__name__}: {error}"
            raise MismatchError(came, wanted, (f"{kind.__name__} {says}", came)) from None
        return
    raise MismatchError(say("no error", "没有报错"), wanted, (f"{kind.__name__} {says}", "no error"))


def describe(error: BaseException, test: Callable[..., None] | None) -> dict[str, Any]:
    """A failure as plain data: what was asked, expected and got, or what was raised, and the lines of it. test: None
    where the judge could not be imported."""
    while error.__cause__ is not None and not isinstance(error, NotImplementedError):  # as Triton's interpreter wraps
        error = error.__cause__
    told: dict[str, Any] = {"kind": type(error).__name__, "text": str(error)}
    told["answer"] = ("", f"{type(error).__name__}: {error}")
    if isinstance(error, MismatchError):
        told.update(kind="mismatch", got=error.got, expected=error.expected, answer=error.answer)
    if isinstance(error, SyntaxError) and error.filename:
        told["frames"] = [_frame(error.filename, error.lineno or 0, "")]
        told["text"] = error.msg
    else:
        frames = _frames(error.__traceback__)
        told["frames"] = [_frame(file, line, name) for file, line, name in frames if _in_tree(file)]
    if test is not None:
        told["asked"], told["values"] = _asked(error.__traceback__, test, told.get("got", ""))
    return told


def _frames(tb: TracebackType | None) -> list[tuple[str, int, str]]:
    return [(entry.filename, entry.lineno or 0, entry.name) for entry in traceback.extract_tb(tb)]


def _in_tree(file: str) -> bool:
    return Path(file).resolve().is_relative_to(TREE / "folovllm")


def _frame(file: str, line: int, name: str) -> dict[str, Any]:
    path = Path(file).resolve()
    where = path.relative_to(TREE).as_posix() if path.is_relative_to(TREE) else path.name
    return {"file": where, "line": line, "name": name, "code": linecache.getline(file, line).strip()}


def _asked(tb: TracebackType | None, asked: Callable[..., None], got: str) -> tuple[list[str], dict[str, str]]:
    """The test's lines up to the statement that failed, and the values of plain variables in that statement."""
    found = None
    while tb is not None:
        if tb.tb_frame.f_code is asked.__code__:
            found = tb
        tb = tb.tb_next
    if found is None:
        return [], {}
    code = asked.__code__
    lines = Path(code.co_filename).read_text(encoding="utf-8").splitlines()
    test = next(
        node
        for node in ast.walk(ast.parse("\n".join(lines)))
        if isinstance(node, ast.FunctionDef)
        and node.name == code.co_name
        and node.end_lineno
        and node.lineno <= found.tb_lineno <= node.end_lineno
    )
    inner = [n for n in ast.walk(test) if isinstance(n, ast.stmt) and n is not test]
    around = [n for n in inner if n.lineno <= found.tb_lineno <= (n.end_lineno or n.lineno)]
    statement = max(around, key=lambda node: node.lineno)
    end = found.tb_lineno if isinstance(statement, ast.For) else statement.end_lineno
    shown = lab_values.shown_lines(lines, test, end or found.tb_lineno)
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    values = {}
    for name in sorted(names.intersection(found.tb_frame.f_locals)):
        value = found.tb_frame.f_locals[name]
        if repr(value) == got:
            continue
        if isinstance(value, (int, float, str, list, tuple, dict, set, type(None))) and len(repr(value)) <= 60:
            values[name] = repr(value)
    return shown, values
