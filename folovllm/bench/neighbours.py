"""What else ran on the machine during a measurement: a figure that was taken beside a busy neighbour must say so.

    busy seconds of all cores  −  those of this process and its children  =  the others'

Times under CPU contention do not repeat, and the median of rounds does not see a neighbour that was there in all of
them.

vLLM: none
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import psutil

SAID_FROM = 0.03  # of all cores; below it is what a machine does for itself


class Neighbours:
    """Watches from when it is made. Not for a server that is asked over HTTP: it is no child of this process, and would
    count as a neighbour."""

    def __init__(self) -> None:
        self._began, self._before = time.perf_counter(), _others()

    def look(self) -> dict[str, Any]:
        """What the others have used since the beginning: seconds on the clock and of the processor, and their share of
        all cores, 0 to 1."""
        wall, cores = time.perf_counter() - self._began, psutil.cpu_count() or 1
        used = max(0.0, _others() - self._before)  # both sides are counted in ticks, at different moments
        share = used / (wall * cores)
        return {"wall_seconds": wall, "cpu_seconds": used, "cores": cores, "share": share, "is_busy": share > SAID_FROM}


def _others() -> float:
    """Seconds of all cores that were neither idle nor ours."""
    now = psutil.cpu_times()
    idle = now.idle + getattr(now, "iowait", 0.0)
    guests = getattr(now, "guest", 0.0) + getattr(now, "guest_nice", 0.0)  # are counted among the users as well
    return float(sum(now) - idle - guests - family_seconds(psutil.Process()))


def family_seconds(process: psutil.Process) -> float:
    """Of a process and its descendants; with those that ended, once they were waited for."""
    total = 0.0
    for member in [process, *process.children(recursive=True)]:
        with suppress(psutil.Error):  # it has just ended
            total += sum(member.cpu_times()[:4])  # its user and system time, its children's
    return total


def describe(load: dict[str, Any]) -> str:
    return (
        f"Busy neighbours: other processes used {load['share'] * load['cores']:.1f} of {load['cores']} cores "
        f"({load['share']:.0%}) while this ran. Its times are longer and vary more than on a quiet machine."
    )
