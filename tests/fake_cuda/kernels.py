"""Launches of Triton kernels: run by Triton's interpreter on the tensors inside, counted, and looked at as a compiler
would: which variant of the kernel would this launch need?"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from tests.fake_cuda.machine import CaptureError, DeviceMismatchError, FakeCuda, where
from tests.fake_cuda.tensor import CudaTensor, unwrap

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "launch_pdl")


def launcher(machine: FakeCuda, interpret: Callable[..., Any]) -> Callable[..., Any]:
    """Stands in for InterpretedFunction.run, which is `interpret`."""

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        machine.check()
        name = kernel.fn.__name__
        options = {key: value for key, value in kwargs.items() if key in OPTIONS}
        bound = _declared(kernel.fn)[0].bind(*args, **{k: v for k, v in kwargs.items() if k not in OPTIONS})
        bound.apply_defaults()
        tensors = {arg: value for arg, value in bound.arguments.items() if isinstance(value, torch.Tensor)}
        if not any(isinstance(tensor, CudaTensor) for tensor in tensors.values()):
            return interpret(kernel, *args, grid=grid, warmup=warmup, **kwargs)  # on the CPU, as in any test
        device = machine.device()
        for arg, tensor in tensors.items():
            if not isinstance(tensor, CudaTensor):
                raise DeviceMismatchError(f"kernel {name}: {arg} lies on the CPU, at {where()}")
            if tensor.on is not device:
                raise DeviceMismatchError(
                    f"kernel {name}: {arg} lies on {tensor.device}, and the current device is "
                    f"{device.torch_device}, at {where()}"
                )
        variant = (device.index, *_variant(kernel, dict(bound.arguments)), *options.items())
        if variant not in machine.variants[name]:
            machine.compiled.append((name, where()))
            if machine.is_capturing:
                raise CaptureError(f"kernel {name} would be compiled while a graph is being recorded, at {where()}")
        machine.variants[name][variant] += 1
        inner_args = [unwrap(value) for value in args]
        inner_kwargs = {key: unwrap(value) for key, value in kwargs.items()}

        def compute() -> None:
            with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
                interpret(kernel, *inner_args, grid=grid, warmup=warmup, **inner_kwargs)

        reads = [tensor.allocation for tensor in tensors.values()]
        if machine.numbers:
            compute()
        device.launched(name, compute, reads)
        return None

    return run


@cache
def _declared(function: Any) -> tuple[inspect.Signature, frozenset[str]]:
    """(its signature, the arguments that are compiled in)."""
    signature = inspect.signature(function)
    return signature, frozenset(n for n, p in signature.parameters.items() if "constexpr" in str(p.annotation))


def _named(kernel: Any, option: str) -> set[str]:
    """The arguments that @triton.jit(option=...) names, by name or by place."""
    names = list(_declared(kernel.fn)[0].parameters)
    said = kernel.kwargs.get(option) or ()
    return {names[value] if isinstance(value, int) else value for value in said}


def _variant(kernel: Any, arguments: dict[str, Any]) -> tuple[Any, ...]:
    """Triton's key: dtypes and constants, of addresses whether 16 divides them, of integers also which are 1."""
    _, constants = _declared(kernel.fn)
    any_value = _named(kernel, "do_not_specialize")
    any_alignment = _named(kernel, "do_not_specialize_on_alignment")
    key: list[Any] = []
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            aligned = name not in any_value | any_alignment and value.data_ptr() % 16 == 0
            key.append((str(value.dtype), aligned))
        elif name in constants or value is None or isinstance(value, bool):
            key.append(value)
        elif isinstance(value, int):
            width = 64 if not -(2**31) <= value < 2**31 else 32
            one = name not in any_value and value == 1
            key.append((width, one, name not in any_value | any_alignment and value % 16 == 0))
        else:
            key.append(type(value).__name__)
    return tuple(key)
