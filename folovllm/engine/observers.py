"""Who is told of each engine that is made, while a block of code runs.

A command's `--trace` and `--watch` are about the engines that the command makes, wherever it makes them: a benchmark
makes its own, deep inside. Outside of such a block nobody is told, and an engine knows nothing of who looks at it.

vLLM: none
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Observer = Callable[[Any], None]
"""Gets the LLMEngine, whole and idle."""

_observers: ContextVar[tuple[Observer, ...]] = ContextVar("observers", default=())


@contextmanager
def observing_engines(observer: Observer) -> Iterator[None]:
    """`observer` is called with every engine that this thread makes within the block."""
    token = _observers.set((*_observers.get(), observer))
    try:
        yield
    finally:
        _observers.reset(token)


def tell_observers(engine: Any) -> None:
    for observer in _observers.get():
        observer(engine)
