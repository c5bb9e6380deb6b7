"""One thread at a time, in the order in which they come.

A plain lock lets a thread that leaves come back before those who wait: a thread that steps an engine in a loop would
keep the others out until it is done. Here who comes back stands in line behind one who waits.

    self._line     held by the next one, while it waits
    self._inside   held by the one that is inside

vLLM: none
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from folovllm.utils.interrupts import interrupts_deferred


class Turns:
    def __init__(self) -> None:
        self._line, self._inside = threading.Lock(), threading.Lock()
        self._owner: int | None = None

    @contextmanager
    def take(self) -> Iterator[None]:
        """Be the only one inside; interrupts wait. A thread that is inside already comes in once more."""
        thread = threading.get_ident()
        if self._owner == thread:
            yield
            return
        with interrupts_deferred():
            with self._line:
                self._inside.acquire()
            self._owner = thread
            try:
                yield
            finally:
                self._owner = None
                self._inside.release()
