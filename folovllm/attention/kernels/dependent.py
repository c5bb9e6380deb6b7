"""Dependent launches: a kernel may be put on the GPU while the one before it ends. Off, until a GPU has measured it.

    one after the other   store_kv │███████│      launch      │ paged_decode │███████████
    dependent             store_kv │███████│ paged_decode │███████████
                                     └ "let the next one come"   └ wait: the one before is over, its results are there

A kernel that waits first, and only then lets its successor come, is right wherever it stands:

    it waits before it reads or writes anything, in every program, also in those that have nothing to do
    what it waits for has waited itself before it ended: so all kernels before that one are over, too
    its successor comes when its own wait is over: no more than two kernels are on the GPU, and the second takes places
    that the first has no program for

A kernel that is launched as usual waits for all of its predecessor by itself. A CUDA graph records the launch as it is.

    FOLOVLLM_DEPENDENT_LAUNCH=yes    in the environment: do. Needs a GPU of compute capability 9.0 or above

vLLM: none of its own; FlashInfer's enable_pdl
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

import os
from typing import Any

import torch
import triton
import triton.language as tl

from folovllm.attention.kernels.tile import INTERPRETED

VARIABLE = "FOLOVLLM_DEPENDENT_LAUNCH"


def is_wanted() -> bool:
    """Asked for, by kernels that are compiled, and not by a GPU that cannot. Without one they are compiled."""
    if os.environ.get(VARIABLE) != "yes" or INTERPRETED:
        return False
    return not torch.cuda.is_available() or torch.cuda.get_device_capability() >= (9, 0)


DEPENDENT = tl.constexpr(is_wanted())
LAUNCH: dict[str, Any] = {"launch_pdl": True} if DEPENDENT.value else {}
"""Goes with the launch of each kernel that begins with wait_for_predecessor()."""


@triton.jit
def wait_for_predecessor():
    """The first thing that a kernel does, before any program of it ends."""
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
