"""How often those who read streams are woken: what the steps bring between two times goes out as one piece.

    steps      1   2   3   4   5   6   7   8   9  10  11
    readers    ▼ write │  rest: 9 times as long  │ ▼ write │ …
              1, 2                                3 to 8

A reader that writes all the time slows the steps: in one process it shares the interpreter with them, and in two the
cores. So after the readers have written, they rest: REST times as long as that took, and LONGEST_REST at most. First
outputs, last outputs and errors do not wait.

vLLM: none
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

REST = 9
LONGEST_REST = 0.1  # seconds: a reader sees ten pieces a second at least


class Pacing:
    """Of one event loop. wake: lets the readers write that have something, and says whether any had."""

    def __init__(self, wake: Callable[[], bool]) -> None:
        self._wake, self.rests = wake, False

    def hand_out(self) -> None:
        """Something has come for a reader: now it is woken, or when the rest is over."""
        began = time.perf_counter()
        if not self.rests and self._wake():
            self.rests = True
            asyncio.get_running_loop().call_soon(self._rest, began)  # in line behind the readers

    def _rest(self, began: float) -> None:
        """The readers have written."""
        seconds = min(REST * (time.perf_counter() - began), LONGEST_REST)
        asyncio.get_running_loop().call_later(seconds, self._end)

    def _end(self) -> None:
        self.rests = False
        self.hand_out()
