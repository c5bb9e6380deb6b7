"""What else ran on the machine during a measurement: a figure that was taken beside a busy neighbour must say so.

    busy of all cores (/proc/stat)  −  this process and its children (/proc/<pid>/stat)  =  the others'

Times under CPU contention do not repeat, and the median of rounds does not see a neighbour that was there in all of
them. Where there is no /proc, nothing is known and the answer is None.

vLLM: none
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SAID_FROM = 0.03  # of all cores; below it is what a machine does for itself
_PROC = Path("/proc")


@dataclass(frozen=True)
class OtherLoad:
    """`cpu_seconds` of other processes during `wall_seconds`, on a machine of `cores`; `stolen_seconds` of them went to
    other virtual machines on the same host."""

    wall_seconds: float
    cpu_seconds: float
    stolen_seconds: float
    cores: int

    @property
    def share(self) -> float:
        """Of all cores, 0 to 1."""
        return self.cpu_seconds / (self.wall_seconds * self.cores) if self.wall_seconds > 0 else 0.0

    @property
    def is_busy(self) -> bool:
        return self.share > SAID_FROM

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"share": self.share, "is_busy": self.is_busy}

    def describe(self) -> str:
        return (
            f"Busy neighbours: other processes used {self.share * self.cores:.1f} of {self.cores} cores "
            f"({self.share:.0%}) while this ran. Its times are longer and vary more than on a quiet machine."
        )


class Neighbours:
    """Watches from when it is made. Not for a server that is asked over HTTP: it is no child of this process, and would
    count as a neighbour."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._before, self._ours = _busy_ticks(), sum(ticks_of_family({os.getpid()}).values())

    def look(self) -> OtherLoad | None:
        """What the others have used since the beginning; None where there is no /proc."""
        now, ours = _busy_ticks(), sum(ticks_of_family({os.getpid()}).values())
        if self._before is None or now is None:
            return None
        tick, wall = os.sysconf("SC_CLK_TCK"), time.perf_counter() - self._began
        busy, stolen = (after - before for after, before in zip(now[:2], self._before[:2], strict=True))
        # Both sides are counted in ticks of 10 ms, at different moments: a quiet machine may come out below 0.
        return OtherLoad(wall, max(0.0, (busy - (ours - self._ours)) / tick), stolen / tick, now[2])


def _busy_ticks() -> tuple[int, int, int] | None:
    """Ticks in which a core was not idle, those of them that the host took away, and the number of cores."""
    try:
        lines = (_PROC / "stat").read_text("utf-8").splitlines()
    except OSError:
        return None
    # user, nice, system, idle, iowait, irq, softirq, steal; guests are counted among the users.
    user, nice, system, _, _, irq, softirq, steal = (int(number) for number in lines[0].split()[1:9])
    cores = sum(line.startswith("cpu") for line in lines) - 1
    return (user + nice + system + irq + softirq + steal, steal, cores) if cores > 0 else None


def ticks_of_family(roots: set[int]) -> dict[int, int]:
    """Of these processes and each of their descendants; with the ticks of those that ended, once they were waited for.
    Empty where there is no /proc."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text("utf-8")
        except OSError:
            continue  # it has just ended
        fields = text.rpartition(")")[2].split()  # a command's name may hold anything, a bracket too
        pid = int(folder.name)
        parents[pid] = int(fields[1])
        ticks[pid] = sum(int(number) for number in fields[11:15])  # its user and system time, its children's
    found, more = set[int](), {pid for pid in roots if pid in ticks}
    while more:
        found |= more
        more = {pid for pid, parent in parents.items() if parent in found} - found
    return {pid: ticks[pid] for pid in found}
