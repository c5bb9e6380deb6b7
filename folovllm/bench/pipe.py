"""A worker process, asked and answered in lines of JSON: a peer or another milestone in an environment of its own.

    this process                    the worker
    ask(request)  -- one line -->   reads its stdin, works
                  <-- one line --   answers on its stdout; whatever else it prints goes to stderr

The clock runs over there, so the pipe costs neither side anything. The end of its input tells a worker to go.

vLLM: none
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

SECONDS_TO_END = 10.0


class Pipe:
    """Use it as a context manager, or close() it: its process may hold a model. It ends with Python at the latest.

    Args:
        name: what an error calls the worker.
        command: the program and its arguments.
        env: all of the environment it gets.
    """

    def __init__(self, name: str, command: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None) -> None:
        self.name = name
        # A file and not a pipe: it is not read while the worker works, and a pipe that is full would stop it.
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by close()
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # a group of its own: what the worker starts can be ended with it
        )
        self.close = weakref.finalize(self, _end, self.process, self._log)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The worker's answer, which may be that something failed: what `error` in it means is the caller's to know.

        Raises:
            RuntimeError: the worker has ended, or is closed; the text has its last words.
        """
        if not self.close.alive:
            raise RuntimeError(f"this {self.name} is closed")
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended: then there is no answer either, which is told below
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}'s process ended without an answer; its last words:\n{self.last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def last_words(self, lines: int = 12) -> str:
        """The end of what it has printed."""
        self._log.seek(0)
        return "\n".join(self._log.read().decode(errors="replace").strip().splitlines()[-lines:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _end(process: subprocess.Popen[str], log: IO[bytes]) -> None:
    """A worker that does not go is ended with all that it started."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process.stdout.close()
    log.close()
