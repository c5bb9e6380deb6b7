"""Whether a step that failed has taken the device with it.

Some errors of a CUDA device are a call's own: memory that is short is there for the next, smaller step. Others belong
to the process. After a kernel has read where nothing is, every later call gets the same error, until the process ends.
Which of the two it was the device tells best: it is asked for anything at all, once, after a step has failed.

vLLM: v1/engine/exceptions.py (EngineDeadError)
"""

from __future__ import annotations

import torch


def find_device_fault(device: torch.device) -> Exception | None:
    """What the device answers to everything from now on; None: it is well."""
    if device.type != "cuda":
        return None
    try:
        torch.cuda.synchronize(device)
    except Exception as fault:
        return fault
    return None
