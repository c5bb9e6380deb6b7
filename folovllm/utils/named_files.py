"""Files that a person named: each is read, or refused in one line that says which file and why.

A name can lead to a folder, to /dev/zero, to a pipe without a writer, to more bytes than there is memory, to text
that is no UTF-8, and to 100,000 brackets. What the parts of a JSON file must be is checked where its meaning is known.

vLLM: none
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TextIO

LARGEST = 2**30
"""Bytes that are read whole. As Python objects they are many times as much."""


def open_file(name: str, path: str | os.PathLike[str]) -> BinaryIO:
    """A file, or a pipe, such as bash's `<(zcat …)`. `name` is the option's or the argument's.

    Raises:
        ValueError: it cannot be opened, or is neither.
    """
    try:
        # Without waiting: a pipe without a writer is then as an empty file.
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise wrong_file(name, "be a file that can be read", path, _reason(error)) from None
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        os.close(fd)
        what = "a folder" if stat.S_ISDIR(mode) else "a device"
        raise wrong_file(name, "be a file", path, f"this is {what}")
    os.set_blocking(fd, True)
    return os.fdopen(fd, "rb")


def read_file(name: str, path: str | os.PathLike[str]) -> bytes:
    """Raises ValueError: what open_file says, or it has more than LARGEST bytes."""
    with open_file(name, path) as file:
        try:
            is_too_large = os.fstat(file.fileno()).st_size > LARGEST
            data = b"" if is_too_large else file.read(LARGEST + 1)
        except OSError as error:
            raise wrong_file(name, "be a file that can be read", path, _reason(error)) from None
    if is_too_large or len(data) > LARGEST:
        raise wrong_file(name, f"have at most {LARGEST:,} bytes", path, "it has more")
    return data


def parse_json(data: bytes) -> Any:
    """The value that UTF-8 text says.

    Raises:
        ValueError: "is not …", for a caller that puts file and line before it.
    """
    try:
        return _DECODER.decode(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 text: {error}") from None
    except RecursionError:
        raise ValueError("is not to be read as JSON: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None


def read_json(name: str, must: str, path: str | os.PathLike[str]) -> Any:
    """The value that a whole file says. `must`: what the file has to be, for the message."""
    data = read_file(name, path)
    try:
        return parse_json(data)
    except ValueError as error:
        raise wrong_file(name, must, path, f"it {error}") from None


def check_target(name: str, path: Path) -> None:
    """A file can be written there."""
    if path.is_dir():
        raise ValueError(f"{name} must be a file, got {str(path)!r}, which is a folder")
    if not path.parent.is_dir():
        raise ValueError(f"{name} must be in an existing folder, got {str(path)!r}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{name} must be a file that can be written, got {str(path)!r}")


@contextmanager
def writing(name: str, path: Path) -> Iterator[TextIO]:
    """A file for what the block writes. Raises ValueError: not all of it could be written."""
    try:
        with path.open("w", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise incomplete(name, path, error) from None


def incomplete(name: str, path: Path, error: OSError) -> ValueError:
    return wrong_file(name, "be a file with room for all of it", path, f"it is incomplete: {_reason(error)}")


def wrong_file(name: str, must: str, path: str | os.PathLike[str], why: str) -> ValueError:
    """With the whole path, however long it is."""
    return ValueError(f"{name} must {must}, got {str(path)!r}; {why}")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


_DECODER = json.JSONDecoder(parse_constant=_no_number)
