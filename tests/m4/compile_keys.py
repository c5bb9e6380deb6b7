"""Which kernels Triton would compile for a CUDA device, found out without one: its own code makes the keys under which
it keeps compiled kernels, out of the arguments of a launch, and here that is all a launch does."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import JITFunction, create_function_from_signature

BACKEND = CUDABackend(GPUTarget("cuda", 90, 32))
OPTIONS = ("do_not_specialize", "do_not_specialize_on_alignment")


class KeyedKernel:
    """Stands for a kernel. Launching it notes the key in `keys`."""

    def __init__(self, kernel: Any, keys: set[tuple[Any, ...]], **options: Any) -> None:
        said = kernel.kwargs if hasattr(kernel, "kwargs") else vars(kernel)  # interpreted, or compiled
        options = {name: said.get(name) for name in OPTIONS} | options
        self._jit, self._keys = JITFunction(kernel.fn, **options), keys
        self._bind = create_function_from_signature(self._jit.signature, self._jit.params, BACKEND)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        assert all(size >= 1 for size in grid)
        return self._launch

    def _launch(self, *args: Any, **kwargs: Any) -> None:
        bound, specialization, options = self._bind(*args, **kwargs)
        constants = tuple(
            (name, value) for (name, value), param in zip(bound.items(), self._jit.params, strict=True)
            if param.is_constexpr
        )  # fmt: skip
        known = tuple(map(str, specialization))
        self._keys.add((self._jit.fn.__name__, constants, known, tuple(sorted(options.items()))))


def record_keys(monkeypatch: pytest.MonkeyPatch, kernels: dict[str, ModuleType]) -> set[tuple[Any, ...]]:
    """The keys of all launches of these kernels from here on: {name: the module that launches it}."""
    keys: set[tuple[Any, ...]] = set()
    for name, module in kernels.items():
        monkeypatch.setattr(module, name, KeyedKernel(getattr(module, name), keys))
    return keys


def at_alignment(tensor: torch.Tensor, numbers: int) -> torch.Tensor:
    """A copy that begins `numbers` of its numbers behind an address that is a multiple of 64."""
    room = torch.empty(tensor.numel() + numbers, dtype=tensor.dtype)
    return room[numbers:].view(tensor.shape).copy_(tensor)
