"""A shared library that is compiled once for a user, and loaded only as it was compiled.

Nothing checks what is mapped into a process. A file that ends too early kills it, by SIGBUS and without a word, when
the missing part is touched; another's file is another's code. So a library is believed only in a folder that no other
user can write to, and only if its digest says that it is the one that was made.

    ~/.cache/folovllm/              XDG_CACHE_HOME/folovllm where that is set
        kernels-<hash>.so           comes last, by a rename, when all of it is on the disk
        kernels-<hash>.sha256       what `sha256sum -c` reads
        .lock                       held by the one process that compiles; others wait, and find what it made
        compiling-<random>/         where it does so. A killed process leaves it to the next one that compiles

The lock is the kernel's own: it ends with the process that holds it, however that ends.

vLLM: none; its kernels are compiled when the package is built
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cached_library(name: str, what: str, build: Callable[[Path], None]) -> Path:
    """The library of that name, made anew where the cache has none, or has one that is not as it was made.

    Args:
        name: has a digest of all that the library depends on.
        what: said before it is made.
        build: writes a library to the path that it is given. What else it writes beside it is removed.

    Raises:
        OSError, RuntimeError: the cache is another user's or cannot be written; there is no home folder.
    """
    folder = _private_folder()
    library = folder / f"{name}.so"
    if _is_as_made(library):
        return library
    print(f"{what} …", file=sys.stderr, flush=True)  # a line, above a spinner that a caller may have; also in a pipe
    with _only_one_process(folder / ".lock"):
        if not _is_as_made(library):  # another process may have been first
            _make(library, build)
    return library


def _private_folder() -> Path:
    """The user's cache. What is in one that others could write to is removed: it may be theirs."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "folovllm"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to user {found.st_uid}, and this is user {os.geteuid()}")
    if found.st_mode & _OTHERS_WRITE:
        folder.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS_WRITE)
        for library in folder.glob("*.so"):
            library.unlink(missing_ok=True)
    return folder


def _is_as_made(library: Path) -> bool:
    try:
        return library.with_suffix(".sha256").read_text("utf-8", errors="replace") == _digest(library)
    except OSError:
        return False


def _digest(library: Path) -> str:
    with library.open("rb") as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {library.name}\n"


@contextmanager
def _only_one_process(lock: Path) -> Iterator[None]:
    import fcntl  # other systems than Linux lack it, and import this file

    with lock.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # closing the file lets go of it
        yield


def _make(library: Path, build: Callable[[Path], None]) -> None:
    folder = library.parent
    for left in folder.glob("compiling-*"):  # by a process that was killed: one that compiles holds the lock
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="compiling-", dir=folder, ignore_cleanup_errors=True) as work:
        made = Path(work) / library.name
        build(made)
        made.with_suffix(".sha256").write_text(_digest(made), "utf-8")
        for path in (made.with_suffix(".sha256"), made):
            _sync(path)
            os.replace(path, folder / path.name)
    _sync(folder)


def _sync(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk: a rename alone may come before them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
