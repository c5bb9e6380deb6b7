"""The processes that chat templates run in, from the outside: each is limited in memory and time.

    render() ── template, variables ──▶ template_worker.py     memory: its limit of address space
       │     ◀── text ─────────────────                        time: it is killed
       └─ check() ten times a second

A template is a program, and Jinja's sandbox keeps it from files and from Python's insides only. A single operation of
it, such as 7**10000000, can take minutes and gigabytes, and no thread can be ended from outside. A process can. One is
kept for the next template; there are as many as threads that render at the same time.

vLLM: none (renderers/hf.py renders in the process of the server)
"""

from __future__ import annotations

import atexit
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

MAX_SECONDS = 10.0
MAX_CHARS = 32 * 2**20
"""That a template may write."""
PERIOD = 0.1
"""Seconds between two checks."""
_WORKER = Path(__file__).parent / "template_worker.py"


class TemplateFailedError(Exception):
    """The template fails, or takes more than it may."""


class _Worker:
    def __init__(self) -> None:
        command = [sys.executable, "-P", str(_WORKER)]  # -P: the folder of the script is none to import from
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0)
        assert self.process.stdin is not None  # for the type checker
        assert self.process.stdout is not None
        self.given, self.taken = self.process.stdin, self.process.stdout
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.taken, selectors.EVENT_READ)

    def ask(self, request: bytes, check: Callable[[], None]) -> tuple[bytes, bytes]:
        """What the process answers: of which kind, and its text. Raises TemplateFailedError, and what `check` does."""
        end = time.monotonic() + MAX_SECONDS
        message = memoryview(len(request).to_bytes(8, "big") + request)
        while message:
            message = message[self.given.write(message) or 0 :]
        data = bytearray()
        while len(data) < 8 or len(data) < 8 + int.from_bytes(data[:8], "big"):
            check()
            if time.monotonic() > end:
                raise TemplateFailedError(f"it takes more than {MAX_SECONDS:g} s")
            if self.selector.select(PERIOD):
                piece = os.read(self.taken.fileno(), 2**20)
                if not piece:
                    raise TemplateFailedError("it ends the process that it runs in, which may be short of memory")
                data += piece
        return bytes(data[8:9]), bytes(data[9:])

    def close(self) -> None:
        self.selector.close()
        self.process.kill()
        self.given.close()
        self.taken.close()
        self.process.wait()


_idle: list[_Worker] = []
os.register_at_fork(after_in_child=_idle.clear)


@atexit.register
def _close() -> None:
    while _idle:
        _idle.pop().close()


def render(request: bytes, check: Callable[[], None]) -> str:
    """What the template writes.

    request: as template_worker.py reads it.
    check: asked now and then. What it raises ends the template, and comes through.

    Raises:
        TemplateFailedError: it fails, or goes beyond its bounds.
    """
    worker = _idle.pop() if _idle else _Worker()
    if worker.process.poll() is not None:  # someone has ended it meanwhile
        worker.close()
        worker = _Worker()
    try:
        kind, text = worker.ask(request, check)
    except BaseException:
        worker.close()
        raise
    if kind == b"m":
        worker.close()
    else:
        _idle.append(worker)
    if kind != b"t":
        raise TemplateFailedError(text.decode("utf-8", "surrogatepass"))
    return text.decode("utf-8", "surrogatepass")
