"""The file of a trace: each record is one write of one line, so a crash loses at most the record that was on its way.

A thread that writes would lose more: what still stands in its queue. And a line of some hundred bytes only goes into
the operating system's cache; `folovllm bench trace` measures what that takes.

vLLM: none
"""

from __future__ import annotations

import json
import os
import weakref
from pathlib import Path

from folovllm.utils.checks import wrong
from folovllm.utils.logging import init_logger

logger = init_logger(__name__)

encode = json.JSONEncoder(separators=(",", ":")).encode  # ASCII: lone surrogates of an id are escaped, too


class TraceWriter:
    """Opens the file, empty, at once.

    Raises:
        ValueError: trace is no path of a file that can be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise wrong("trace", "be the path of a file", path)
        self.path = Path(path)
        if self.path.is_dir():
            raise ValueError(f"trace must be a file, got {str(self.path)!r}, which is a folder")
        try:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
        except OSError as error:
            raise ValueError(f"trace must be a file that can be written, got {str(self.path)!r}: {error}") from error
        self._close = weakref.finalize(self, os.close, self._fd)  # also where the engine is dropped without a word
        self.num_bytes = 0

    def write(self, record: str) -> None:
        """One record, as JSON in ASCII. Nothing once it is closed. A full disk ends the trace, and not the engine."""
        if not self._close.alive:
            return
        line = f"{record}\n".encode("ascii")
        try:
            written = os.write(self._fd, line)
            if written != len(line):
                raise OSError("the disk is full")
            self.num_bytes += written
        except OSError as error:
            logger.warning("trace %s ends here: %s", self.path, error)
            self.close()

    def close(self) -> None:
        self._close()
