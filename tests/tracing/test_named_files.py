"""A file that a person named is read, or refused in one line; what is written is whole, or said not to be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from folovllm.utils import named_files
from folovllm.utils.named_files import parse_json, read_file, read_json, writing

MUST = "be JSON of ours"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 50_000, "nested too deeply"),
        (b"", "is not JSON"),
        (b"\0" * 9, "is not JSON"),
        (b"[NaN]", "NaN is no number"),
        (b"1" * 5000, "is not JSON"),
        ("{}".encode("utf-16"), "is not UTF-8 text"),
    ],
)
def test_what_is_no_json_is_refused_with_its_files_name(tmp_path: Path, data: bytes, text: str) -> None:
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(ValueError, match=rf"^file must be JSON of ours, got '.*a\.json'; it .*{text}"):
        read_json("file", MUST, tmp_path / "a.json")


def test_text_of_windows_with_its_mark_is_read() -> None:
    assert parse_json("\ufeff[1]".encode()) == [1]


@pytest.mark.parametrize(("name", "text"), [("no/such", "No such file"), (".", "a folder"), ("/dev/zero", "a device")])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"^file must be a file.*, got .*{text}"):
        read_file("file", tmp_path / name)


def test_a_path_with_a_nul_is_refused() -> None:
    with pytest.raises(ValueError, match="^file must be a file that can be read"):
        read_file("file", "a\0b")


def test_a_pipe_is_read_to_its_end_and_one_without_a_writer_is_empty(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"[1]")
    os.close(writer)
    assert read_json("file", MUST, f"/dev/fd/{reader}") == [1]
    os.close(reader)
    os.mkfifo(tmp_path / "pipe")
    assert read_file("file", tmp_path / "pipe") == b""


def test_a_file_beyond_the_limit_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(named_files.LARGEST + 1)  # a hole: it takes no room on the disk
    with pytest.raises(ValueError, match="^file must have at most 1,073,741,824 bytes, got .*huge"):
        read_file("file", tmp_path / "huge")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
def test_a_file_that_is_not_written_whole_is_told(tmp_path: Path) -> None:
    text = "^output must be a file with room .*, got '/dev/full'; it is incomplete: No space left on device$"
    with pytest.raises(ValueError, match=text), writing("output", Path("/dev/full")) as file:
        file.write("a page")
