"""An engine in a process and an environment of another kind, asked and answered in lines of JSON: a peer, a milestone.

    this process                    workers/run.py, and a file *_engine.py
    ask(request)  -- one line -->   reads its stdin, works
                  <-- one line --   answers on its stdout; whatever else it prints goes to stderr

The worker takes the times, so the pipe costs neither side anything. The end of its input ends a worker.

vLLM: none
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

RUN = Path(__file__).with_name("workers") / "run.py"
SECONDS_TO_END = 10.0


class WorkerError(RuntimeError):
    """The worker failed for a `reason`, at a `stage`: "import", "load" or "run"; None where it did not say."""

    def __init__(self, name: str, reason: str, stage: str | None = None, output: str = "") -> None:
        super().__init__(f"{name} failed: {reason}" + (f"; its last words:\n{output}" if output else ""))
        self.reason, self.stage = reason, stage


class WorkerProcess:
    """close() it: it may hold a model. It ends with Python at the latest.

    Args:
        name: what an error calls the worker.
        engine: the file of its engine, whose Engine(**settings) is made there.
        env: all of the environment it gets.
    """

    def __init__(
        self, name: str, engine: Path, settings: Mapping[str, Any], *, env: Mapping[str, str],
        python: str = sys.executable, cwd: Path | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        # A file and not a pipe: it is not read while the worker works, and a pipe that is full would stop it.
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by close()
        # A session for itself: what the worker starts can be ended with it.
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log}
        self.process: Any = subprocess.Popen(
            [python, str(RUN)], cwd=cwd, env=env, text=True, encoding="utf-8", start_new_session=True, **pipes
        )
        self.close = weakref.finalize(self, _end, self.process, self._log)
        self.facts = self.ask({"engine": str(engine), **settings})
        """Its version, and the dtype of its weights where they are not those that it was given."""

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Raises WorkerError: it failed, has ended or is closed; the text has the end of its output."""
        if not self.close.alive:
            raise WorkerError(self.name, "it is closed")
        with suppress(BrokenPipeError):  # it has ended: then there is no answer either
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "its process ended without an answer"}
        if "error" in answer:
            self._log.seek(0)
            output = "\n".join(self._log.read().decode(errors="replace").strip().splitlines()[-12:])
            raise WorkerError(self.name, answer["error"], answer.get("stage"), output)
        return answer


def _end(process: Any, log: IO[bytes]) -> None:
    """A worker that does not go is ended with all that it started."""
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process.stdout.close()
    log.close()
