"""How many threads compute the embedded model: one, unless the user has chosen a number. And each rank: its share.

Beside a busy program every product would wait for the thread that has no core just then: ten times as long.

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


def threads_for_steps(model: str | None, ranks: int = 1) -> Callable[[], AbstractContextManager[None]]:
    """What the steps of this model are computed in, by each of so many ranks of one machine."""
    if model == EMBEDDED_MODEL:
        return partial(few_threads, None)
    return nullcontext if ranks == 1 else partial(few_threads, ranks)


@contextmanager
def few_threads(ranks: int | None) -> Iterator[None]:
    """Inside, torch computes with one thread (None), or with the share of its threads that one of so many ranks has;
    afterwards with as many as before. A number that comes from OMP_NUM_THREADS or torch.set_num_threads() holds. Torch
    does not say whether its number was set, so one that it would take by default counts as not chosen."""
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" in os.environ or before not in torchs_own_numbers():
        yield
        return
    torch.set_num_threads(1 if ranks is None else max(1, before // ranks))
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
