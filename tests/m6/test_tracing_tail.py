"""The tail of a trace: what a crash leaves, what a reader makes of it, and what it does not do to the engine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from folovllm.tracing.reader import read_trace
from folovllm.tracing.tail import SIZE, read_with_tail, tail_path
from folovllm.tracing.writer import TraceWriter
from tests.m6.trace_support import Simulated

HEADER, LONG = "header\n", "x" * 1000 + "\n"


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "run.jsonl"


def test_a_line_is_there_before_the_next_is_written(path) -> None:
    writer = TraceWriter(path)
    for line in (HEADER, "one\n", "two\n"):
        writer.write(line)
        assert read_with_tail(path).endswith(line.encode())
    assert path.read_text() == HEADER
    assert read_with_tail(path) == b"header\none\ntwo\n"
    assert writer.num_bytes == len("header\none\ntwo\n")


def test_a_full_tail_moves_into_the_trace_and_nothing_is_there_twice(path) -> None:
    writer = TraceWriter(path)
    lines = [HEADER, *(f"{number} {LONG}" for number in range(200)), "y" * 2 * SIZE + "\n", "last\n"]
    for line in lines:
        writer.write(line)
        assert read_with_tail(path).endswith(line.encode())
    assert read_with_tail(path).decode() == "".join(lines)
    writer.close()
    assert path.read_text() == "".join(lines)
    assert not tail_path(path).exists()


def test_a_crash_between_moving_and_emptying_is_seen(path) -> None:
    """The trace has the lines already, and the tail still has them."""
    writer = TraceWriter(path)
    writer.write(HEADER)
    writer.write("one\n")
    tail = tail_path(path).read_bytes()
    writer.close()
    tail_path(path).write_bytes(tail)
    assert read_with_tail(path) == b"header\none\n"


def test_a_tail_of_another_trace_is_passed_over(path) -> None:
    writer = TraceWriter(path)
    writer.write(HEADER)
    writer.write("one\n")
    tail = tail_path(path).read_bytes()
    writer.close()
    tail_path(path).write_bytes(tail)
    path.write_text("another\ntwo\n")
    assert read_with_tail(path) == b"another\ntwo\n"


def test_a_new_run_of_the_same_name_leaves_the_one_before_alone(path) -> None:
    """Its tail is another file: cutting the old one short would kill whoever has it mapped."""
    first = TraceWriter(path)
    first.write(HEADER)
    second = TraceWriter(path)
    second.write("second\n")
    first.write("one\n")
    second.write("two\n")
    assert read_with_tail(path) == b"second\ntwo\n"


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


def test_a_full_disk_ends_the_trace_and_is_told_once(path, monkeypatch, caplog) -> None:
    def is_full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    writer = TraceWriter(path)
    writer.write(HEADER)
    monkeypatch.setattr("folovllm.tracing.tail.os.write", is_full)
    for _ in range(200):
        writer.write(LONG)
    monkeypatch.undo()
    writer.close()
    with pytest.raises(
        ValueError, match="^trace must be a file with room .* it is incomplete: No space left on device$"
    ):
        writer.check_whole()
    assert [record.getMessage() for record in caplog.records if "ends here" in record.getMessage()] == [
        f"trace {path} ends here: [Errno 28] No space left on device"
    ]
    assert read_with_tail(path).startswith(b"header\n" + LONG.encode() * 3)  # what came before it can be read


def test_a_disk_with_room_for_a_part_is_asked_for_the_rest(path, monkeypatch) -> None:
    """A write that takes a part of the bytes says no reason; the next one does."""
    write = os.write
    monkeypatch.setattr("folovllm.tracing.tail.os.write", lambda fd, data: write(fd, data[:3]))
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
    load.tracer.close(load.now)
    closed = read_trace(path)
    assert alive.steps == closed.steps
    assert (alive.end, alive.is_torn) == (None, False)
    assert closed.end is not None
    assert len(path.read_text().splitlines()) == json.loads(path.read_text().splitlines()[-2])["step"] + 3
