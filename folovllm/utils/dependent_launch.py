"""Programmatic dependent launch: a kernel's launch overlaps the end of the kernel before it.

    without    | before ............ |  launch, places taken  | after ......
    with       | before ............ | after ......
                    launch, places taken, wait

A kernel that is launched so may begin when each program of the one before has said that it may, or is over. It must
wait, before it touches memory, until all of that one is written. So every kernel here waits first, and says then that
the next one may come: its own end implies the end of all before it.

vLLM: lora/ops/triton_ops/utils.py (supports_pdl)
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from folovllm.utils.gpus import gpu_of


@cache
def dependent_launch(device: torch.device) -> dict[str, bool]:
    """Arguments of any kernel's launch, on a Hopper GPU for such a launch. Earlier ones have none, and on some later
    ones (compute capability 12.0) it is known to have failed inside of a graph."""
    if gpu_of(device).is_nvidia(9) and not triton.knobs.runtime.interpret:
        return {"DEPENDENT": True, "launch_pdl": True}
    return {"DEPENDENT": False}


@triton.jit  # type: ignore[untyped-decorator]
def wait_for_kernel_before(DEPENDENT: tl.constexpr) -> None:
    """What a kernel calls before it reads or writes anything."""
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
