"""Compares and shows values of a judge: numbers, lists, tensors of any library that has tolist(). Imports no torch."""

from __future__ import annotations

import math
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


def show(value: Any) -> str:
    if is_tensor(value):
        if len(flat(value)) > MOST_ELEMENTS:
            return f"a tensor of shape {list(value.shape)}, {value.dtype}"
        value = _rounded(value.tolist())
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    return float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) else value
