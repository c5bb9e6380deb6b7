"""Compares and shows values of a judge: numbers, lists, tensors of any library that has tolist(). Imports no torch."""

from __future__ import annotations

import ast
import math
import textwrap
from typing import Any

LONGEST = 400  # characters of a value that is shown
MOST_ELEMENTS = 16  # of a tensor that is shown whole


def equal(a: Any, b: Any) -> bool:
    if is_tensor(a) or is_tensor(b):
        return shape(a) == shape(b) and flat(a) == flat(b)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def is_tensor(value: Any) -> bool:
    return hasattr(value, "tolist") and hasattr(value, "shape")


def shape(value: Any) -> list[int] | None:
    if is_tensor(value):
        return list(value.shape)
    if isinstance(value, (list, tuple)):
        return [len(value), *((shape(value[0]) or []) if value else [])]
    return [] if isinstance(value, (int, float)) else None


def flat(value: Any) -> list[Any]:
    if is_tensor(value):
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        return [value]
    return [leaf for entry in value for leaf in flat(entry)]


def worst(a: Any, b: Any) -> tuple[float, int]:
    """The largest difference, and where; a NaN on one side only is infinitely far."""
    largest, at = -1.0, 0
    for place, (x, y) in enumerate(zip(flat(a), flat(b), strict=True)):
        if x == y or (math.isnan(x) and math.isnan(y)):
            far = 0.0
        else:
            far = abs(x - y)
            far = math.inf if math.isnan(far) else far
        if far > largest:
            largest, at = far, place
    return max(largest, 0.0), at


def show_both(got: Any, expected: Any) -> tuple[str, str]:
    """Both as text. What is long is cut to where they begin to differ."""
    texts = show(got), show(expected)
    if max(map(len, texts)) <= LONGEST:
        return texts
    same = next((at for at, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    return _cut(texts[0], same), _cut(texts[1], same)


def _cut(text: str, same: int) -> str:
    """About LONGEST characters of `text`, a quarter of them before place `same`."""
    start = max(0, same - LONGEST // 4)
    before, behind = "… " if start else "", " …" if len(text) > start + LONGEST else ""
    return before + text[start : start + LONGEST] + behind


def show(value: Any) -> str:
    if is_tensor(value):
        if len(flat(value)) > MOST_ELEMENTS:
            return f"a tensor of shape {list(value.shape)}, {value.dtype}"
        value = _rounded(value.tolist())
    return repr(value)


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    return float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) else value


def shown_lines(lines: list[str], test: ast.FunctionDef | ast.AsyncFunctionDef, end: int) -> list[str]:
    """The lines of a test up to line `end`, as a learner sees them: without its docstring. `lines` are the file's."""
    body = test.body[1:] if ast.get_docstring(test) is not None else test.body
    return textwrap.dedent("\n".join(lines[body[0].lineno - 1 : end])).splitlines()
