"""Starts the process of an engine. Nothing heavy is imported here: it imports torch and loads the model while the front
imports what it needs itself.

vLLM: v1/engine/utils.py (CoreEngineProcManager)
"""

from __future__ import annotations

import atexit
import multiprocessing
import socket
from collections.abc import Sequence
from typing import Any


class EngineProcess:
    """It belongs to this object: it ends with close(), with Python, or when this process is killed.

    Args: as for AsyncLLM; observers are shown the engine in its process, so each must be a function that a module has.
    """

    def __init__(self, model: str, *, observers: Sequence[Any] = (), **options: Any) -> None:
        self.connection, theirs = socket.socketpair()
        # Not a fork: torch's threads and CUDA do not live on in one.
        self.process = multiprocessing.get_context("spawn").Process(
            target=_run, args=(theirs, model, options, observers), name="folovllm-engine", daemon=True
        )
        self.process.start()
        theirs.close()
        atexit.register(self.process.kill)

    def close(self) -> None:
        """End it, whatever it is doing."""
        atexit.unregister(self.process.kill)
        self.connection.close()
        self.process.kill()
        self.process.join()


def _run(*args: Any) -> None:
    from folovllm.serving.engine_proc import run_engine  # loads torch

    run_engine(*args)
