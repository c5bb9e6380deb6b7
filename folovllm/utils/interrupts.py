"""Ctrl-C at a moment of our choosing.

Python raises KeyboardInterrupt between any two instructions of the main thread. Between "the block left the pool" and
"the block stands in a table" that would lose the block for ever. So book-keeping notes an interrupt, and it is raised
where nothing is half done:

    with interrupts_deferred():          noted from here on
        schedule()
        with interrupts_allowed():       raised at once: the long part, which can be computed again
            execute_model()
        update()
                                         what was noted is raised here

Only the main thread gets interrupts. In the others both do nothing.

vLLM has no such thing: its engine is a process of its own, which a SIGINT ends.

vLLM: none
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

_MAIN = threading.main_thread()


class _State:
    """Of the process: it has one handler for SIGINT."""

    is_installed = False
    is_open = False  # inside interrupts_allowed()
    was_noted = False
    previous: Any = None  # the handler that was there before


def _handle(signum: int, frame: FrameType | None) -> None:
    if _State.is_open:
        _State.previous(signum, frame)
    else:
        _State.was_noted = True


def _raise_noted() -> None:
    if _State.was_noted:
        _State.was_noted = False
        _State.previous(signal.SIGINT, None)  # KeyboardInterrupt; under asyncio, a cancelled main task


class interrupts_deferred:
    """An interrupt inside the block is raised at its end, or at the end of the outermost of such blocks."""

    def __enter__(self) -> None:
        self._installed = self._was_open = False
        if threading.current_thread() is not _MAIN:
            return
        if _State.is_installed:
            self._was_open, _State.is_open = _State.is_open, False
            return
        _State.previous = signal.getsignal(signal.SIGINT)
        if callable(_State.previous):  # else Ctrl-C is ignored, or ends the process
            _State.is_open = _State.was_noted = False
            signal.signal(signal.SIGINT, _handle)
            self._installed = _State.is_installed = True

    def __exit__(self, *exc_info: object) -> None:
        if self._installed:
            _State.is_installed = False
            signal.signal(signal.SIGINT, _State.previous)
            _raise_noted()
        elif self._was_open:
            _State.is_open = True
            _raise_noted()


class interrupts_allowed:
    """Inside interrupts_deferred(): an interrupt that has been noted is raised here, and a new one at once."""

    def __enter__(self) -> None:
        self._opened = False
        if _State.is_installed and threading.current_thread() is _MAIN:
            _raise_noted()
            self._opened = not _State.is_open
            _State.is_open = True

    def __exit__(self, *exc_info: object) -> None:
        if self._opened:
            _State.is_open = False
