"""Request ids: a counter per engine, so that two engines in one process number their own requests.

vLLM: vllm/utils/counter.py
"""

from __future__ import annotations


class Counter:
    """`next(counter)` gives 0, 1, 2, …"""

    def __init__(self, start: int = 0) -> None:
        self._next = start

    def __iter__(self) -> Counter:
        return self

    def __next__(self) -> int:
        value = self._next
        self._next += 1
        return value
