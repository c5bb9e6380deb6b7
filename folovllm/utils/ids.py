"""Names for requests that got none from their caller. vLLM: none"""

from __future__ import annotations

from collections.abc import Callable, Iterator


def next_unused(prefix: str, numbers: Iterator[int], is_used: Callable[[str], bool]) -> str:
    """`prefix-0`, `prefix-1`, …: the next that is not in use. A user may have named a request like one of ours."""
    name = f"{prefix}-{next(numbers)}"
    while is_used(name):
        name = f"{prefix}-{next(numbers)}"
    return name
