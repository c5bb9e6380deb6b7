"""What a process did not make it does not use. A fork has copies of sockets and shared memory, whose other ends take it
for its parent, and none of the threads.

vLLM: none
"""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

from folovllm.errors import EngineDeadError

_ours: WeakSet[Any] = WeakSet()
keep_from_forks = _ours.add
"""In a fork, `forked(error)` of this object lets go of what was copied. Who uses it there gets the error."""


def _forked() -> None:
    ours = f"process {os.getpid()} is a fork of {os.getppid()}, to which the engine belongs; make one in each process"
    while _ours:
        _ours.pop().forked(EngineDeadError(ours))


os.register_at_fork(after_in_child=_forked)
