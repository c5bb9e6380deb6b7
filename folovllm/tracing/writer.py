"""The file of a trace: each record has left the process before the next is begun, so a crash loses at most the last.

It is a flush of gzip's and a system call for each record; a record is like the one before, and so has a few bytes.

vLLM: none
"""

from __future__ import annotations

import json
import os
import weakref
import zlib
from pathlib import Path

from folovllm.distributed.forks import keep_from_forks
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
        self._file = os.fdopen(fd, "ab", buffering=0)
        self._gzip = zlib.compressobj(1, wbits=31)
        self._error: OSError | None = None
        self._close = weakref.finalize(self, self._file.close)  # also where the engine is dropped without a word
        keep_from_forks(self)

    def forked(self, error: Exception) -> None:
        self._close()  # a fork's steps are none of its parent's

    @property
    def is_whole(self) -> bool:
        """Whether all that was written is in the file."""
        return self._error is None

    def check_whole(self) -> None:
        """Raises ValueError: the file lacks its end; why."""
        if self._error is not None:
            raise incomplete("trace", self.path, self._error)

    def write(self, line: str) -> None:
        """One record, as JSON in ASCII, with its end of line. Nothing once this is closed. A full disk ends the trace,
        and not the engine."""
        if not self._file.closed:
            self._put(self._gzip.compress(line.encode("ascii")) + self._gzip.flush(zlib.Z_SYNC_FLUSH))

    def _put(self, data: bytes) -> None:
        written = 0
        try:
            while written < len(data):  # a disk with room for a part takes that, and says why not the rest when asked
                written += self._file.write(data[written:])
        except OSError as error:
            self._error = error
            logger.warning("trace %s ends here: %s", self.path, error)
            self._close()

    def close(self) -> None:
        if not self._file.closed:
            self._put(self._gzip.flush())
            self._close()
