"""How many threads compute the embedded model: one, unless the user has chosen a number. Beside a busy program every
product would wait for the thread that has no core just then, and a step would take ten times as long.

vLLM: none
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path

import torch

from folovllm.config import EMBEDDED_MODEL

os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))  # a fork has none of torch's own


def threads_for_steps(model: str | None) -> Callable[[], AbstractContextManager[None]]:
    """What the steps of this model are computed in."""
    return one_thread if model == EMBEDDED_MODEL else nullcontext


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, torch computes with one thread; afterwards with as many as before. A number from OMP_NUM_THREADS or
    torch.set_num_threads() holds. Torch does not tell which was set: its own by default counts as not chosen."""
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" in os.environ or before not in torchs_own_numbers():
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def torchs_own_numbers() -> frozenset[int]:
    """By its build, torch takes a thread for each CPU, or each core where two CPUs are one; on macOS each fast core."""
    if platform.system() == "Darwin":
        fast = subprocess.run(("sysctl", "-n", "hw.perflevel0.physicalcpu"), capture_output=True, check=False).stdout
        return frozenset({os.cpu_count() or 1, int(fast or 1)})
    cpus = os.sched_getaffinity(0)
    files = [Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") for cpu in cpus]
    cores = {file.read_text("utf-8") for file in files if file.exists()}
    return frozenset({len(cpus), len(cores) or len(cpus)})
