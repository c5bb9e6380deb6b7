"""A shared library that is compiled once for a user, and kept in ~/.cache/folovllm, or $XDG_CACHE_HOME/folovllm.

vLLM: none; its kernels are compiled when the package is built
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path


def cached_library(name: str, what: str, build: Callable[[Path], None]) -> Path:
    """The library of that name, compiled where the cache has none.

    Args:
        name: has a digest of all that the library depends on.
        what: printed before it is compiled.
        build: writes a library to the path that it is given. What else it writes beside it is removed.

    Raises:
        OSError, RuntimeError: the cache cannot be written; there is no home folder.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "folovllm"
    library = folder / f"{name}.so"
    if not library.exists():
        print(f"{what} …", file=sys.stderr, flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            build(Path(work) / library.name)
            os.replace(Path(work) / library.name, library)  # whole, whoever compiles it at the same time
    return library
