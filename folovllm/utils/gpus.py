"""What kernels may count on, by the GPU.

torch calls AMD's "cuda", too, and gfx90a and gfx942 have compute capability 9.0 and 9.4 to it. They give a program 64
KiB of shared memory. All kernels have been compiled for these two, and none has run on one.

vLLM: vllm/platforms/
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch


class Gpu(NamedTuple):
    vendor: str  # "nvidia" or "amd"; "" for a CPU, where Triton's interpreter runs what a Hopper GPU would
    capability: tuple[int, int]

    def is_nvidia(self, *majors: int) -> bool:
        """9: Hopper, with dependent launches. 10: its matrix units have a memory of their own."""
        return self.vendor == "nvidia" and self.capability[0] in majors

    @property
    def has_small_tiles(self) -> bool:
        """It has less shared memory than the 227 KiB of a Hopper GPU, and no matrix instruction that reads it: operands
        are in registers instead, of which there are no more."""
        return self.vendor != "" and not self.is_nvidia(9, 10)

    def stages(self, most: int) -> int:
        """Steps of a loop under way at a time, of which all but one are in shared memory."""
        return 2 if self.vendor == "amd" else most


@cache
def gpu_of(device: torch.device) -> Gpu:
    vendor = "" if device.type != "cuda" else "amd" if torch.version.hip else "nvidia"
    return Gpu(vendor, torch.cuda.get_device_capability(device) if vendor else (0, 0))
