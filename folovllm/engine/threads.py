"""How many threads compute the embedded model: one, unless the user has chosen a number.

Its products are done before a second thread has woken up. Alone on a machine two threads are a little faster than one;
beside a busy program every product waits for the thread that has no core just then, and a step takes ten times as long.

vLLM: none
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from folovllm.config import EMBEDDED_MODEL

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def threads_for(model: str | None) -> int:
    """A number that comes from OMP_NUM_THREADS or torch.set_num_threads() holds. Torch does not tell whether somebody
    has set its number, so one that it would take by itself counts as not chosen."""
    number = torch.get_num_threads()
    if model != EMBEDDED_MODEL or "OMP_NUM_THREADS" in os.environ or number not in torchs_own_numbers():
        return number
    return 1


@contextmanager
def few_threads(model: str) -> Iterator[None]:
    """Torch computes with threads_for(model) inside, and with as many as before for whatever comes after it: code
    around an engine is not ours to slow down. It takes a microsecond."""
    before, number = torch.get_num_threads(), threads_for(model)
    if number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def torchs_own_numbers() -> frozenset[int]:
    """By its build, torch takes a thread for each CPU, or for each core where two CPUs are one core."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    files = [Path(_TOPOLOGY.format(cpu)) for cpu in cpus]
    cores = {file.read_text() for file in files if file.exists()}
    return frozenset({len(cpus), len(cores) or len(cpus)})
