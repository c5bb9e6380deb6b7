"""The file of a trace: what a crash leaves in it, and what its writing does not do to the engine."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from folovllm.tracing.reader import read_trace
from folovllm.tracing.writer import TraceWriter
from tests.tracing.support import Simulated

HEADER, LONG = "header\n", "x" * 1000 + "\n"


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "run.jsonl"


def test_a_line_is_there_before_the_next_is_written(path) -> None:
    writer = TraceWriter(path)
    lines = [HEADER, "one\n", "y" * 100_000 + "\n", "last\n"]
    for number, line in enumerate(lines, start=1):
        writer.write(line)
        assert path.read_text() == "".join(lines[:number])
    assert writer.num_bytes == len("".join(lines))


def test_nothing_is_written_once_it_is_closed(path) -> None:
    writer = TraceWriter(path)
    writer.write(HEADER)
    for _ in range(2):
        writer.close()
        writer.write("one\n")
    writer.check_whole()
    assert path.read_text() == HEADER


def test_an_emptied_trace_does_not_hurt_the_writer(path) -> None:
    writer = TraceWriter(path)
    writer.write(HEADER)
    path.write_text("")
    writer.write("one\n")
    writer.close()
    assert path.read_text() == "one\n"


def test_lines_go_straight_to_what_is_no_file(tmp_path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = TraceWriter(pipe)
    writer.write(HEADER)
    writer.write("one\n")
    assert os.read(reader, 100) == b"header\none\n"
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
    disk.room = len(HEADER) + 5
    writer = TraceWriter(path)
    writer.write(HEADER)
    for _ in range(200):
        writer.write(LONG)
    writer.close()
    with pytest.raises(
        ValueError, match="^trace must be a file with room .* it is incomplete: No space left on device$"
    ):
        writer.check_whole()
    assert [record.getMessage() for record in caplog.records if "ends here" in record.getMessage()] == [
        f"trace {path} ends here: [Errno 28] No space left on device"
    ]
    assert path.read_bytes() == b"header\nxxxxx"  # what came before it can be read
    assert writer.num_bytes == len("header\nxxxxx")


def test_a_disk_with_room_for_a_part_is_asked_for_the_rest(path, disk) -> None:
    """A write that takes a part of the bytes says no reason; the next one does."""
    disk.room, disk.at_once = 100, 3
    writer = TraceWriter(path)
    writer.write(HEADER)
    writer.close()
    writer.check_whole()
    assert path.read_bytes() == b"header\n"


def test_a_living_trace_and_a_closed_one_hold_the_same_steps(path) -> None:
    load = Simulated(path)
    load.add("a", [1] * 20, 12)
    while load.scheduler.has_unfinished_requests():
        load.step()
    alive = read_trace(path)
    load.tracer.close()
    closed = read_trace(path)
    assert alive.steps == closed.steps
    assert (alive.end, alive.is_torn) == (None, False)
    assert closed.end is not None
    assert len(path.read_text().splitlines()) == json.loads(path.read_text().splitlines()[-2])["step"] + 2
