"""A process with one milestone's engine in it, asked and answered in lines of JSON (see bench_worker.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from milestones.spec import MilestoneError

WORKER = Path(__file__).with_name("bench_worker.py")
SECONDS_TO_END = 10.0


class Worker:
    """A context manager: on leaving, the process ends."""

    def __init__(self, name: str, tree: Path, threads: int | None = None) -> None:
        self.name = name
        env = {**os.environ, "PYTHONPATH": str(tree)}
        if threads is not None:
            env["OMP_NUM_THREADS"] = str(threads)
        # A file and not a pipe: nobody reads it while the engine works, and a full pipe would stop it.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed on leaving
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER)],  # -P: this folder stays off the path
            cwd=tree,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended: then no answer comes, which is told below
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise MilestoneError(f"{self.name}'s process ended without an answer: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise MilestoneError(f"{self.name} failed: {answer['error']}")
        return answer

    def _last_words(self, lines: int = 5) -> str:
        self._log.seek(0)
        return "\n".join(self._log.read().decode(errors="replace").strip().splitlines()[-lines:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()  # the end of its loop
        try:
            self._process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
