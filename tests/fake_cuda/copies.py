"""Copies between host and device, with torch's own rule for when the host goes on: the host's side is pinned and
contiguous, and the copy was asked not to block. Anything else goes through pageable memory, and the host waits.

The rule: aten/src/ATen/native/cuda/Copy.cu (copy_requires_temporaries, copy_kernel_cuda).
"""

from __future__ import annotations

from typing import Any

import torch

from tests.fake_cuda.machine import POISON, Copy, Device, DeviceMismatchError, FakeCuda, as_bytes, where
from tests.fake_cuda.tensor import CudaTensor


def check_same_device(name: str, ours: list[CudaTensor], hosts: list[torch.Tensor]) -> None:
    """Raises DeviceMismatchError. A host tensor of no dimension is a number, and fine."""
    devices = {str(tensor.device) for tensor in ours} | {"cpu" for tensor in hosts if tensor.dim() > 0}
    if len(devices) > 1:
        raise DeviceMismatchError(f"{name}: tensors on {' and '.join(sorted(devices))}, at {where()}")


def convert(source: torch.Tensor, target: torch.device, dtype: torch.dtype, blocks_not: bool, machine: FakeCuda) -> Any:
    """What tensor.to(device, dtype, non_blocking) gives."""
    if target.type == "cuda":
        device = machine.device(target)
        if isinstance(source, CudaTensor):
            inner = source.inner.to(dtype, copy=True)
            made = CudaTensor(inner, None, device)
            of = source.inner
            device.launched("_to_copy", lambda: inner.copy_(of), [source.allocation])
            return made
        upload(source, blocks_not, device)
        return CudaTensor(source.to(dtype, copy=True).to(machine.data_device), None, device)
    assert isinstance(source, CudaTensor)
    machine.launches["memcpy d2h"] += 1
    source.on.wait("copy to pageable host memory")  # where .to("cpu", non_blocking=True) goes, too
    return source.inner.to(dtype, copy=True) if machine.numbers else torch.zeros(source.shape, dtype=dtype)


def upload(source: torch.Tensor, non_blocking: bool, to: Device) -> None:
    """Count a copy from the host, and keep an eye on its source."""
    machine = to.machine
    to.refuse_in_capture("copy from host memory")
    machine.launches["memcpy h2d"] += 1
    machine.uploads.append(source.nbytes)
    if not machine.is_pinned(source):
        to.wait("copy from pageable host memory")
    elif not source.is_contiguous():
        to.wait("copy from scattered host memory, through pageable memory")
    elif not non_blocking:
        to.wait("blocking copy from pinned host memory")
    else:
        to.settle(source)
        to.copies.append(Copy("to device", source, source.clone(), where()))


def copy_into(target: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> torch.Tensor:
    """target.copy_(source, non_blocking)."""
    if isinstance(target, CudaTensor):
        to = target.inner
        if isinstance(source, CudaTensor):
            of = source.inner
            to.copy_(of)
            target.on.launched("copy_", lambda: to.copy_(of), [target.allocation, source.allocation])
        else:
            upload(source, non_blocking, target.on)
            to.copy_(source.to(target.on.machine.data_device))
        return target
    assert isinstance(source, CudaTensor)
    device, machine = source.on, source.on.machine
    machine.launches["memcpy d2h"] += 1
    device.refuse_in_capture("copy to host memory")
    arriving = source.inner.to(target.dtype, copy=True) if machine.numbers else torch.zeros_like(target)
    if non_blocking and machine.is_pinned(target) and target.is_contiguous():
        device.settle(target)
        as_bytes(target).fill_(POISON)
        device.copies.append(Copy("to host", target, arriving.expand(target.shape), where()))
        return target
    device.wait("blocking copy to the host" if not non_blocking else "copy to pageable or scattered host memory")
    target.copy_(arriving)
    return target
