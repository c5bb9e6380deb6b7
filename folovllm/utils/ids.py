"""Request ids: a counter per engine, so that two engines in one process number their own requests.

vLLM: vllm/utils/counter.py
"""

from __future__ import annotations

import itertools
from collections.abc import Callable


class Counter:
    """`next(counter)` gives 0, 1, 2, …; no two threads get the same."""

    def __init__(self, start: int = 0) -> None:
        self._numbers = itertools.count(start)

    def __iter__(self) -> Counter:
        return self

    def __next__(self) -> int:
        return next(self._numbers)


def next_unused(prefix: str, numbers: Counter, is_used: Callable[[str], bool]) -> str:
    """`prefix-0`, `prefix-1`, …: the next that is not in use. A user may have named a request like one of ours."""
    name = f"{prefix}-{next(numbers)}"
    while is_used(name):
        name = f"{prefix}-{next(numbers)}"
    return name
