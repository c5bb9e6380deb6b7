"""A rich console for what commands print: tables on a terminal, plain lines in a pipe. vLLM: none"""

from __future__ import annotations

import os
import re
from typing import IO, Any

from rich.console import Console, ConsoleDimensions

UNBOUNDED = 10_000


class PlainConsole(Console):
    """In a pipe or a file, lines are as long as what they say: nothing is wrapped at 80 columns or padded to them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, **options)

    @property  # type: ignore[misc]  # no setters here
    def size(self) -> ConsoleDimensions:
        size = super().size
        return size if self.is_terminal or "COLUMNS" in os.environ else ConsoleDimensions(UNBOUNDED, size.height)

    @property  # type: ignore[misc]
    def file(self) -> IO[str]:
        file = super().file
        return file if file.isatty() else _Unpadded(file)  # type: ignore[return-value]

    def on_broken_pipe(self) -> None:
        """The reader has left. main() knows what to do; rich would end the program with status 1."""
        raise  # the BrokenPipeError that rich is handling


class _Unpadded:
    """A stream that leaves out the spaces before a line's end."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(re.sub(r" +\n", "\n", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
