import io
import zlib

import pytest

from folovllm.worker.fs_tier import CRC, FileSystemTier
from lab_judge import expect, invariant

RECORD, FIRST, SECOND = b"block 5", b"keys", b"values"
WHOLE = RECORD + FIRST + SECOND
FILE = WHOLE + CRC.pack(zlib.crc32(WHOLE))


def read(data, record=RECORD):
    """What comes of it, and what is in the parts afterwards."""
    parts = [memoryview(bytearray(len(FIRST))), memoryview(bytearray(len(SECOND)))]
    return FileSystemTier._read(io.BytesIO(data), record, parts), [bytes(part) for part in parts]


@invariant(1)
def test_a_whole_file():
    expect(read(FILE), (True, [FIRST, SECOND]))


@invariant(2)
@pytest.mark.parametrize("record", [b"block 6", b"block 55"])
def test_another_blocks_file(record):
    expect(read(FILE, record), (False, [bytes(4), bytes(6)]))


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
def test_something_behind_it():
    expect(read(FILE + b"!")[0], False)


@invariant(5)
def test_no_parts():
    expect(FileSystemTier._read(io.BytesIO(RECORD + CRC.pack(zlib.crc32(RECORD))), RECORD, []), True)
