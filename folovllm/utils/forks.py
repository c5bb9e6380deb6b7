"""What belongs to the process that made it: its threads, and what else is at the other end of sockets and shared memory.
A fork has a copy of this end. What it said would count as said by its parent.

vLLM: none
"""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

from folovllm.errors import EngineDeadError

_ours: WeakSet[Any] = WeakSet()


def keep_from_forks(thing: Any) -> None:
    """In a fork of this process thing.forked(error) lets go of its copy. Who uses that gets the error."""
    _ours.add(thing)


def _forked() -> None:
    error = EngineDeadError(
        f"process {os.getpid()} is a fork of {os.getppid()}, to which the engine belongs; make one in each process"
    )
    for thing in list(_ours):
        thing.forked(error)
    _ours.clear()


os.register_at_fork(after_in_child=_forked)
