"""How torch's threads wait for one another on a CPU.

A step of a model is some hundred parallel regions, each of them a fraction of a millisecond. Between two of them a
thread can sleep, which takes microseconds to end, or look again and again whether there is work ("spin"). GNU OpenMP
spins for up to tens of milliseconds. That is the fastest where every thread has a core of its own. Where another
program wants one of the cores, the spinning thread takes turns with the one that it waits for, and a step takes many
times as long (docs/en/m4/cpu.md).

So the command `folovllm` asks for a short spin, where nothing was asked for. OpenMP reads the setting when torch is
imported. A program that imports folovllm has to set GOMP_SPINCOUNT itself, before it imports torch.

https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html

vLLM: none
"""

from __future__ import annotations

import os
import sys

SPINS = "5000"
"""Turns of the waiting loop. One takes about 50 ns where the CPU's PAUSE is slow, and less elsewhere."""
SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def set_wait_policy() -> None:
    """Ask for a short spin, unless the environment asks for something, or torch has been imported already."""
    if "torch" not in sys.modules and not any(name in os.environ for name in SETTINGS):
        os.environ["GOMP_SPINCOUNT"] = SPINS
