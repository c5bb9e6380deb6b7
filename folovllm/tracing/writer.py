"""The file of a trace: each record has left the process before the next is begun, so a crash loses at most the last.

A thread that writes would lose more: what still stands in its queue.

vLLM: none
"""

from __future__ import annotations

import json
import os
import weakref
from pathlib import Path

from folovllm.tracing.tail import Tail
from folovllm.utils.checks import wrong
from folovllm.utils.logging import init_logger
from folovllm.utils.named_files import incomplete

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
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
        except OSError as error:
            raise ValueError(f"trace must be a file that can be written, got {str(self.path)!r}: {error}") from error
        self._tail = Tail(self.path, fd)
        self._close = weakref.finalize(self, _close, self._tail)  # also where the engine is dropped without a word

    @property
    def num_bytes(self) -> int:
        return self._tail.num_bytes

    @property
    def is_whole(self) -> bool:
        """Whether all that was written is in the file."""
        return self._tail.error is None

    def check_whole(self) -> None:
        """Raises ValueError: the file lacks its end; why."""
        if (error := self._tail.error) is not None:
            raise incomplete("trace", self.path, error)

    def write(self, line: str) -> None:
        """One record, as JSON in ASCII, with its end of line. Nothing once this is closed. A full disk ends the trace,
        and not the engine."""
        data = line.encode("ascii")
        try:
            self._tail.add(data)
        except OSError as error:
            logger.warning("trace %s ends here: %s", self.path, error)

    def close(self) -> None:
        self._close()


def _close(tail: Tail) -> None:
    try:
        tail.close()
    except OSError as error:
        logger.warning("trace %s ends here: %s", tail.trace, error)
