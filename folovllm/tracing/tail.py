"""The newest records of a trace, in memory that outlives the process.

    run.jsonl         header record record … record │
                                             offset ┘
    run.jsonl.tail    offset header │ record record record 0 0 0 0

A system call for each record is the dearest thing about it. Behind a step, whose kernels have pushed what it needs out
of the processor's caches, it takes several times as long as a copy into mapped memory. And the copy is as safe against
a crash: the pages of a mapped file belong to the operating system, and a process that is killed leaves them behind. So
records go into a second, small file that is mapped, and from there into the trace: when it is full, and at the end,
when it is removed.

It is a second file because a mapping of the trace itself would kill the process where somebody cuts that file short.

vLLM: none
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from pathlib import Path

from folovllm.utils.named_files import read_file

SIZE = 64 * 1024
DIGITS = 20  # of the offset


class Tail:
    """Takes lines for the trace behind `fd`, which is empty. The first is the header, and goes there at once.

    Where no file can be mapped beside the trace, which may be a pipe, all do.
    """

    def __init__(self, trace: Path, fd: int) -> None:
        self.trace, self._fd, self._is_open, self._pid = trace, fd, True, os.getpid()
        self._map: mmap.mmap | None = None
        self._offset = self._first = self._end = self._size = 0
        self.error: OSError | None = None
        """Why the trace lacks its end. Told by add() and close(), kept for who looks later."""

    @property
    def num_bytes(self) -> int:
        """How much was added."""
        return self._offset + self._end - self._first

    def add(self, line: bytes) -> None:
        """Nothing once this is closed. Raises OSError where the disk is full; that closes it, too."""
        end = self._end + len(line)
        if end < self._size:  # at least one zero is left, where a reader stops
            self._map[self._end : end] = line  # type: ignore[index]
            self._end = end
        else:
            self._move(line)

    def close(self) -> None:
        """Move all to the trace, and be gone. A second call does nothing. Raises OSError where the disk is full."""
        if self._is_open and self._pid == os.getpid():  # in a fork of the process the file is not its own
            self._move(b"")
            self._stop()
            if self._map is not None:
                tail_path(self.trace).unlink(missing_ok=True)

    def _move(self, line: bytes) -> None:
        """All records to the trace, and `line` behind them."""
        if not self._is_open:
            return
        data = (b"" if self._map is None else self._map[self._first : self._end]) + line
        try:
            written = 0
            while written < len(data):  # a disk with room for a part takes that, and tells why not the rest when asked
                written += os.write(self._fd, data[written:])
        except OSError as error:
            self.error = error
            self._stop()  # what is in the tail stays there
            raise
        self._offset += len(data)
        if self._offset == len(line):
            self._make(line)
        elif self._map is not None:
            # In this order: between the two, the trace is longer than what offset and tail make, and a reader takes it.
            self._map[self._first : self._end] = bytes(self._end - self._first)
            self._end = self._first
            self._map[:DIGITS] = b"%0*d" % (DIGITS, self._offset)

    def _stop(self) -> None:
        self._is_open, self._size = False, 0  # so that each line that comes is a case for _move
        os.close(self._fd)

    def _make(self, header: bytes) -> None:
        start = b"%0*d\n" % (DIGITS, self._offset) + header
        path = tail_path(self.trace)
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                return
            path.unlink(missing_ok=True)  # of a run that crashed; not cut short, for that run may be alive
            with path.open("x+b") as file:
                file.write(start + bytes(SIZE))  # so that there is room on the disk, and in memory
                file.flush()
                self._map = mmap.mmap(file.fileno(), 0)
        except (OSError, ValueError):  # a folder in which no file can be made, a disk without room, one that maps none
            with contextlib.suppress(OSError):
                path.unlink()
            return
        self._first = self._end = len(start)
        self._size = len(self._map)


def tail_path(trace: Path) -> Path:
    """run.jsonl -> run.jsonl.tail"""
    return trace.with_name(trace.name + ".tail")


def read_with_tail(trace: Path) -> bytes:
    """A trace, and what its tail has beyond it. The trace may be one that is being written.

    Raises:
        ValueError: the trace cannot be read.
        OSError: its tail cannot.
    """
    try:
        tail = tail_path(trace).read_bytes()  # before the trace: what moves meanwhile is seen twice, and not missed
    except FileNotFoundError:
        return read_file("trace", trace)
    data = read_file("trace", trace)
    header = data[: data.find(b"\n") + 1]
    offset, _, rest = tail.partition(b"\n")
    if not header or not rest.startswith(header) or not offset.isdigit():
        return data  # it belongs to another trace that had this name
    records, _, _ = rest[len(header) :].partition(b"\0")
    return max(data, data[: int(offset)] + records, key=len)
