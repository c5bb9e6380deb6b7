"""A process with one milestone's engine in it, asked and answered in lines of JSON (see worker.py)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Self

from folovllm.bench.pipe import Pipe
from milestones.spec import MilestoneError

WORKER = Path(__file__).with_name("worker.py")


class Worker:
    """A context manager: on leaving, the process ends."""

    def __init__(self, name: str, tree: Path, threads: int | None = None) -> None:
        self.name = name
        env = {**os.environ, "PYTHONPATH": str(tree)}
        if threads is not None:
            env["OMP_NUM_THREADS"] = str(threads)
        # -P: this folder stays off the path
        self.pipe = Pipe(name, [sys.executable, "-P", str(WORKER)], env=env, cwd=tree)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = self.pipe.ask(request)
        except RuntimeError as error:
            raise MilestoneError(str(error)) from error
        if "error" in answer:
            raise MilestoneError(f"{self.name} failed: {answer['error']}")
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.pipe.close()
