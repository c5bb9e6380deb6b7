import io
import zlib

import pytest

from folovllm.worker.fs_tier import CRC, FileSystemTier
from lab_judge import expect, invariant

RECORD, PARTS = b"block 5", [b"key", b"value", b"token"]


def written(record, parts):
    whole = record + b"".join(parts)
    return whole + CRC.pack(zlib.crc32(whole))


FILE = written(RECORD, PARTS)  # its last byte is 0
BEFORE = [b"was", b"there", b"first"]


def read(data, record=RECORD):
    """What comes of it, and what is in the parts afterwards."""
    parts = [memoryview(bytearray(part)) for part in BEFORE]
    return FileSystemTier._read(io.BytesIO(data), record, parts), [bytes(part) for part in parts]


@invariant(1)
def test_a_whole_file():
    expect(read(FILE), (True, PARTS))


@invariant(1)
def test_one_file_after_another():
    parts = [b"yek", b"eulav", b"nekot"]
    other = written(b"block 7", parts)
    expect([read(other, b"block 7"), read(FILE)], [(True, parts), (True, PARTS)])


@invariant(2)
@pytest.mark.parametrize("record", [b"block 6", b"block 55", b"clock 5"])
def test_another_blocks_file(record):
    expect(read(FILE, record), (False, BEFORE))


@invariant(3)
@pytest.mark.parametrize("length", range(len(FILE)))
def test_a_file_that_ends_too_early(length):
    expect(read(FILE[:length])[0], False)


@invariant(4)
@pytest.mark.parametrize("place", range(len(FILE)))
def test_one_bit_is_another(place):
    data = bytearray(FILE)
    data[place] ^= 4
    expect(read(bytes(data))[0], False)


@invariant(4)
def test_zeros_in_its_second_half():
    expect(read(FILE[:12] + bytes(len(FILE) - 12))[0], False)


@invariant(4)
@pytest.mark.parametrize("more", [b"!", b"\0"])
def test_something_behind_it(more):
    expect(read(FILE + more)[0], False)


@invariant(4)
def test_something_before_the_crc():
    expect(read(FILE[: -CRC.size] + b"more" + FILE[-CRC.size :])[0], False)


@invariant(5)
def test_no_parts():
    expect(FileSystemTier._read(io.BytesIO(written(RECORD, [])), RECORD, []), True)


@invariant(5)
def test_parts_of_wider_numbers():
    part = memoryview(bytearray(6)).cast("H")
    expect(FileSystemTier._read(io.BytesIO(written(RECORD, [b"values"])), RECORD, [part]), True)
    expect(part.tobytes(), b"values")


class Counting(io.BytesIO):
    """Counts the bytes that read() has given."""

    given = 0

    def read(self, size=-1):
        data = super().read(size)
        self.given += len(data)
        return data


@invariant(5)
def test_only_the_record_and_the_crc_are_read_otherwise():
    file, parts = Counting(FILE), [memoryview(bytearray(part)) for part in BEFORE]
    expect(FileSystemTier._read(file, RECORD, parts), True)
    expect(file.given, len(RECORD) + CRC.size)
