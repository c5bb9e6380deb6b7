"""A command with a limit: it ends by itself, or it is ended with all that it started.

A program on a GPU that hangs does so inside of the driver, its helpers wait for it, and what stays behind keeps the
memory that the next one wants. So the whole family is killed, by its process group and by its family tree: a child that
has left the group is still somebody's child.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO


@dataclass(frozen=True)
class Ended:
    """How a command came to its end."""

    code: int | None
    """The exit status; None where the limit ended it."""
    seconds: float


def run_limited(argv: Sequence[str], limit: float, log: BinaryIO, env: Mapping[str, str]) -> Ended:
    """Run `argv` with both outputs into `log`, for at most `limit` seconds.

    Whatever ends this function, an interrupt too, ends the command and its children.
    """
    start = time.monotonic()
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **env}, start_new_session=True
    )
    try:
        code: int | None = process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        if process.poll() is None:
            kill_family(process.pid)
            process.wait()
        else:
            # Its number may be another's by now, but as long as the group lives, not the group's.
            kill_group(process.pid)
    return Ended(code, time.monotonic() - start)


def end_parts_when_told_to() -> None:
    """Let SIGTERM, by which `timeout` ends what takes too long, end the command that runs as an interrupt does."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def kill_family(leader: int) -> None:
    """Kill a process, its descendants, and the rest of the group that it leads."""
    for pid in [*descendants(leader), leader]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    kill_group(leader)


def kill_group(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Its children, theirs, and so on; where there is no /proc to read them from, none."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # "pid (name) state parent ...": a name may hold blanks and brackets.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = list(children.get(pid, []))
    for one in found:  # grows while it is read
        found += children.get(one, [])
    return found
