"""The file of a trace: what a crash leaves in it, and what its writing does not do to the engine."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from pathlib import Path

import pytest

from folovllm.tracing.reader import read_trace
from folovllm.tracing.writer import TraceWriter
from tests.tracing.support import Simulated

HEADER = "header\n"
LINES = [f"{number * 7919:x}" * 300 + "\n" for number in range(200)]


def text_of(data: bytes) -> str:
    """What can be read of it."""
    return zlib.decompressobj(wbits=31).decompress(data).decode()


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "run.gz"


def test_a_line_is_there_before_the_next_is_written(path) -> None:
    writer = TraceWriter(path)
    lines = [HEADER, "one\n", "y" * 100_000 + "\n", "last\n"]
    for number, line in enumerate(lines, start=1):
        writer.write(line)
        assert text_of(path.read_bytes()) == "".join(lines[:number])


def test_nothing_is_written_once_it_is_closed(path) -> None:
    writer = TraceWriter(path)
    writer.write(HEADER)
    for _ in range(2):
        writer.close()
        writer.write("one\n")
    writer.check_whole()
    assert gzip.decompress(path.read_bytes()).decode() == HEADER


def test_lines_go_straight_to_what_is_no_file(tmp_path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = TraceWriter(pipe)
    writer.write(HEADER)
    writer.write("one\n")
    assert text_of(os.read(reader, 100)) == "header\none\n"
    writer.close()
    os.close(reader)
    assert os.listdir(tmp_path) == ["pipe"]


class Disk(io.FileIO):
    """A file on a disk with room for so many bytes more, `at_once` of them in a call."""

    room, at_once = 0, 1000

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        written = super().write(data[: min(self.room, self.at_once)])
        self.room -= written
        return written


@pytest.fixture
def disk(path, monkeypatch) -> Disk:
    """What the next writer writes to."""
    disk = Disk(path, "wb")
    monkeypatch.setattr("folovllm.tracing.writer.os.fdopen", lambda fd, *_, **__: os.close(fd) or disk)
    return disk


def test_a_full_disk_ends_the_trace_and_is_told_once(path, disk, caplog) -> None:
    disk.room = 2000
    writer = TraceWriter(path)
    for line in LINES:
        writer.write(line)
    writer.close()
    with pytest.raises(
        ValueError, match="^trace must be a file with room .* it is incomplete: No space left on device$"
    ):
        writer.check_whole()
    assert [record.getMessage() for record in caplog.records if "ends here" in record.getMessage()] == [
        f"trace {path} ends here: [Errno 28] No space left on device"
    ]
    written = path.read_bytes()
    assert len(written) == 2000
    assert len(text_of(written)) > len(LINES[0])  # what came before it can be read
    assert "".join(LINES).startswith(text_of(written))


def test_a_disk_with_room_for_a_part_is_asked_for_the_rest(path, disk) -> None:
    """A write that takes a part of the bytes says no reason; the next one does."""
    disk.room, disk.at_once = 100, 3
    writer = TraceWriter(path)
    writer.write(HEADER)
    writer.close()
    writer.check_whole()
    assert gzip.decompress(path.read_bytes()) == b"header\n"


def test_a_living_trace_and_a_closed_one_hold_the_same_steps(path) -> None:
    load = Simulated(path)
    load.add("a", [1] * 20, 12)
    while load.scheduler.has_unfinished_requests():
        load.step()
    alive = read_trace(path)
    load.close()
    closed = read_trace(path)
    assert alive.steps == closed.steps
    assert (alive.end, alive.is_torn) == (None, False)
    assert closed.end is not None
    assert [step.step for step in closed.steps] == list(range(1, 13))
