"""A stand-in for CUDA devices on a machine that has none: the engine's CUDA path runs, and what would go wrong says so.

A CudaTensor says that it lies on cuda:0 or cuda:1. Its numbers lie in a CPU tensor (results are right, Triton kernels
run in the interpreter), or nowhere (numbers=False: real model sizes, nothing is computed, kernels are only counted).

    DeviceMismatchError    tensors of two devices in one operator, a kernel that gets a host tensor, or one that is
                           launched while another device is the current one
    HostWaitError          item(), tolist(), a blocking copy, a copy from or to pageable memory, inside no_waits()
    CaptureError           any of these while a graph is recorded; so do a random draw and a kernel's compilation
    EscapedMemoryError     memory from a graph's pool that is still held when the recording ends
    FreedMemoryError       a replay of kernels whose input nobody holds any more
    PinnedMemoryError      pinned memory that is written while a copy out of it is under way
    (no error)             pinned memory that is read before its copy's event holds POISON

What is counted: launches, waits, uploads, bytes in use, and the variants of each Triton kernel that would be compiled.

What it cannot know: how long anything takes, whether kernels race with one another, fragmentation of memory, streams
other than the default one (asking for one is refused), and two threads that use one device at a time.
"""

from tests.fake_cuda.machine import (
    POISON,
    CaptureError,
    DeviceMismatchError,
    EscapedMemoryError,
    FakeCuda,
    FreedMemoryError,
    HostWaitError,
    PinnedMemoryError,
)
from tests.fake_cuda.stand_in import fake_cuda_machine
from tests.fake_cuda.tensor import CudaTensor

__all__ = [
    "POISON",
    "CaptureError",
    "CudaTensor",
    "DeviceMismatchError",
    "EscapedMemoryError",
    "FakeCuda",
    "FreedMemoryError",
    "HostWaitError",
    "PinnedMemoryError",
    "fake_cuda_machine",
]
