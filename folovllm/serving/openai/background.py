"""Threads beside the event loop: for what is prepared for a request, and for long responses that are written as JSON.

    event loop ── run(make) ──▶ one of a few threads:  a piece ─ check() ─ a piece ─ check() ─ …
                                                                  └─ raises where its client has gone

Nothing can end a thread from outside. So what may take long is cut into pieces, and asks between two of them.

vLLM: utils/async_utils.py (make_async)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

Check = Callable[[], None]
"""Raises where the work should go no further."""
_T = TypeVar("_T")
PREPARE_SECONDS = 30.0
"""That tokens, template and grammar of one request may take in a thread; then it is refused."""
NUM_THREADS = 4
"""They take turns in one interpreter, so that more of them would not be faster: as many long requests may come before
a short one has to wait."""


def at_once() -> None:
    """The check of work that is too short to ask: nothing comes between its pieces."""


def within(seconds: float, clock: Callable[[], float]) -> Check:
    """A check of what may take so long, from the first time that it asks. Raises ValueError."""
    began: float | None = None

    def check() -> None:
        nonlocal began
        now = clock()
        began = now if began is None else began
        if now - began > seconds:
            raise ValueError(
                f"the request must be prepared within {seconds:g} s (tokens, chat template, form), and was not: ask "
                "for less at once"
            )

    return check


class AbandonedError(Exception):
    """The client that this work is for has gone."""


class Background:
    """Threads for such work; what it is given must not change under them."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="folovllm-background")
        self.num_waited_for = 0
        self._is_closed = False

    async def run(self, make: Callable[[Check], _T], check: Check = at_once) -> _T:
        """What `make` returns or raises. It gets a function to ask between its pieces, which asks `check` in turn.
        When this coroutine is cancelled, or all of this is closed, the work ends at the next time that it asks."""
        waits = True
        self.num_waited_for += 1

        def ask() -> None:
            if self._is_closed or not waits:
                raise AbandonedError
            check()

        def work() -> _T:
            ask()
            return make(ask)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, copy_context().run, work)
        finally:
            waits = False
            self.num_waited_for -= 1

    def close(self) -> None:
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)


class CancellableTokenizer:
    """A tokenizer that asks before each text. Everything else of it is as it was."""

    def __init__(self, tokenizer: Any, check: Check) -> None:
        self._tokenizer, self._check = tokenizer, check

    def __call__(self, text: str, **options: Any) -> Any:
        self._check()
        return self._tokenizer(text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)
