"""Methods of living objects, each with something around it, and taken off again.

So the engine is looked at from outside: it does not know of it, and what is not looked at costs nothing.

vLLM: none
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

_ABSENT = object()


class Wraps:
    """What was put on last is taken off first."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def around(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """owner.name becomes make(owner.name)."""
        method = getattr(owner, name)
        self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, wraps(method)(make(method)))

    def after(self, owner: Any, name: str, tell: Callable[..., None]) -> None:
        """tell(result, *arguments) is called behind each call that returns."""

        def make(method: Callable[..., Any]) -> Callable[..., Any]:
            def told(*args: Any, **kwargs: Any) -> Any:
                result = method(*args, **kwargs)
                tell(result, *args, **kwargs)
                return result

            return told

        self.around(owner, name, make)

    def undo(self) -> None:
        while self._before:
            owner, name, before = self._before.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
