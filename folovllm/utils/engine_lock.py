"""The engine's lock: one thread at a time, first come first served, and no KeyboardInterrupt while it is held.

threading.Lock lets a thread that releases it take it again before those that wait: a thread that steps an engine in a
loop would keep the others out until it is done. Here such a thread queues behind one that waits.

Python raises KeyboardInterrupt between any two instructions of the main thread. Between "the block left the pool" and
"the block is in a table" that would lose the block for ever. So the lock's holder notes an interrupt, and it is raised
where nothing is half done:

    with lock:                           noted from here on
        schedule()
        with interrupts_allowed():       raised at once: the long part, which can be computed again
            execute_model()
        update()
                                         what was noted is raised here

The handler of SIGINT is replaced only while the lock is held, or Ctrl-C would mean something else to the program.

vLLM: none; its engine is a process of its own, which a SIGINT ends
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

_MAIN = threading.main_thread()  # only the main thread gets interrupts: in the others nothing is noted


class _Interrupt:
    """Of the process: it has one handler for SIGINT."""

    handler: Any = None  # the program's own, while ours is in its place; None: ours is not
    waits = False  # an interrupt is noted for later, not raised
    was_noted = False


def _handle(signum: int, frame: FrameType | None) -> None:
    if _Interrupt.waits:
        _Interrupt.was_noted = True
    else:
        _Interrupt.handler(signum, frame)


def _raise_noted(handler: Any) -> None:
    _Interrupt.was_noted = False
    handler(signal.SIGINT, None)  # KeyboardInterrupt; under asyncio, a cancelled main task


class EngineLock:
    """As a context: held by one thread, which may take it again; interrupts wait until it is released."""

    def __init__(self) -> None:
        self._next = threading.Lock()  # held by the thread that is next, while it waits
        self._held = threading.Lock()
        self._owner: int | None = None
        self._depth = 0
        # What __exit__ restores. Interrupts may have been held back before, under another engine's lock: then nothing.
        # Else the handler that was there, or None: that other engine had one, and allowed interrupts just then.
        self._waited = True
        self._handler: Any = None

    def __enter__(self) -> None:
        if self._owner == threading.get_ident():
            self._depth += 1
            return
        waited, handler = True, None
        if threading.current_thread() is _MAIN:
            if _Interrupt.handler is not None:
                waited, _Interrupt.waits = _Interrupt.waits, True
            elif callable(found := signal.getsignal(signal.SIGINT)):  # else Ctrl-C is ignored, or ends the process
                _Interrupt.waits, _Interrupt.was_noted = True, False
                signal.signal(signal.SIGINT, _handle)
                waited, handler = False, found
                _Interrupt.handler = found
        with self._next:
            self._held.acquire()
        self._owner, self._depth, self._waited, self._handler = threading.get_ident(), 1, waited, handler

    def __exit__(self, *exc_info: object) -> None:
        self._depth -= 1
        if self._depth > 0:
            return
        waited, handler = self._waited, self._handler
        self._owner = None
        self._held.release()
        if waited:
            return
        if handler is None:
            _Interrupt.waits, handler = False, _Interrupt.handler
        else:
            _Interrupt.handler = None
            signal.signal(signal.SIGINT, handler)
        if _Interrupt.was_noted:
            _raise_noted(handler)


class interrupts_allowed:
    """While the lock is held: an interrupt that has been noted is raised here, and a new one at once."""

    def __enter__(self) -> None:
        self._waited = _Interrupt.waits and threading.current_thread() is _MAIN and _Interrupt.handler is not None
        if self._waited:
            if _Interrupt.was_noted:
                _raise_noted(_Interrupt.handler)
            _Interrupt.waits = False

    def __exit__(self, *exc_info: object) -> None:
        if self._waited:
            _Interrupt.waits = True
