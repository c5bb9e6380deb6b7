"""Puts the stand-in in place, and takes it away again: torch.cuda, generators, factories, Triton's launches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch._dynamo  # noqa: F401  it imports half of torch, which must not happen under the modes
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fake_cuda.copies import convert, upload
from tests.fake_cuda.kernels import launcher
from tests.fake_cuda.machine import FakeCuda
from tests.fake_cuda.operators import made, run
from tests.fake_cuda.runtime import HostGenerator, runtime
from tests.fake_cuda.tensor import CudaTensor, tensors_in

FACTORIES = {
    "empty", "zeros", "ones", "full", "arange", "tensor", "rand", "randn", "randint", "randperm", "as_tensor",
    "asarray", "linspace", "empty_strided", "eye",
}  # fmt: skip
MOVES = {"to", "cuda", "pin_memory", "is_pinned"}


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


class _Functions(TorchFunctionMode):
    """Calls that never dispatch on a build without CUDA: they ask for a CUDA tensor, or for pinned memory."""

    def __init__(self, machine: FakeCuda) -> None:
        super().__init__()
        self.machine = machine

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not kwargs and getattr(func, "__name__", "") not in MOVES:  # nearly all calls
            return func(*args)
        kwargs, name, machine = dict(kwargs or {}), getattr(func, "__name__", ""), self.machine
        pinned = kwargs.pop("pin_memory", False)
        is_host = bool(args) and isinstance(args[0], torch.Tensor) and not isinstance(args[0], CudaTensor)
        if name in FACTORIES and _is_cuda(kwargs.get("device")):
            device = machine.device(kwargs["device"])
            if name not in ("tensor", "as_tensor", "asarray"):
                return made(func, args, kwargs, device)
            host = func(*args, **{**kwargs, "device": "cpu"})
            upload(host, non_blocking=False, to=device)
            return CudaTensor(host.to(machine.data_device, copy=True), None, device)
        if name in ("to", "cuda") and is_host:
            if name == "cuda":
                args = (args[0], "cuda", *args[2:])
            parsed = {key: value for key, value in kwargs.items() if key != "copy"}
            target, dtype, non_blocking, _ = torch._C._nn._parse_to(*args[1:], **parsed)
            if _is_cuda(target):
                return convert(args[0], target, dtype or args[0].dtype, non_blocking, machine)
        if name == "pin_memory" and is_host:
            return machine.pin(args[0].clone())
        if name == "is_pinned" and is_host:
            return machine.is_pinned(args[0])
        out = func(*args, **kwargs)
        return machine.pin(out) if pinned else out


class _Operators(TorchDispatchMode):
    """Operators in which a host tensor comes first never reach a CudaTensor's own dispatch."""

    def __init__(self, machine: FakeCuda) -> None:
        super().__init__()
        self.machine = machine

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        made_on = self.machine.device(kwargs["device"]) if _is_cuda(kwargs.get("device")) else None
        if made_on is not None or any(isinstance(tensor, CudaTensor) for tensor in tensors_in((args, kwargs))):
            return run(func, args, kwargs, made_on)
        return func(*args, **kwargs)


@contextmanager
def fake_cuda_machine(
    *, numbers: bool = True, total_bytes: int = 80 << 30, num_devices: int = 1, context_bytes: int = 600 << 20
) -> Iterator[FakeCuda]:
    """Within this block torch has CUDA devices, also in threads that are started there. Skips the test on a machine
    that has some: tests/gpu runs there, and kernels are compiled instead of interpreted.

    Args:
        numbers: False: tensors have shapes only, and whatever the host asks for is 0.
        total_bytes: memory of each device.  context_bytes: what the driver takes of it.
    """
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    from triton.runtime.interpreter import InterpretedFunction

    from folovllm.utils.gpus import gpu_of

    machine = FakeCuda(numbers=numbers, total_bytes=total_bytes, num_devices=num_devices, context_bytes=context_bytes)
    thread_run, interpret = threading.Thread.run, InterpretedFunction.run

    def run_with_modes(thread: threading.Thread) -> None:
        with _Functions(machine), _Operators(machine):  # they are a thread's own
            thread_run(thread)

    replaced = [(torch.cuda, name, value) for name, value in runtime(machine).items()]
    replaced += [
        (torch, "Generator", HostGenerator),
        (threading.Thread, "run", run_with_modes),
        (InterpretedFunction, "run", launcher(machine, interpret)),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    gpu_of.cache_clear()  # tests of other capabilities ask, too
    try:
        with _Functions(machine), _Operators(machine):
            yield machine
            for device in machine.devices:
                device.finish_copies(len(device.copies))
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
        gpu_of.cache_clear()
