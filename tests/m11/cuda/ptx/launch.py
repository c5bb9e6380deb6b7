"""Lets this process launch its Triton kernels on CPU tensors: compiled for a GPU, and run by block.py."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from tests.m11.cuda.ptx.arithmetic import ARITHMETIC
from tests.m11.cuda.ptx.block import Block, Memory
from tests.m11.cuda.ptx.matrices import MATRICES
from tests.m11.cuda.ptx.movement import MOVEMENT
from tests.m11.cuda.ptx.program import Program

CAPABILITY = int(os.environ.get("COMPILE_FOR", "90"))
TYPES = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64", torch.int32: "i32",
    torch.int64: "i64", torch.int8: "i8", torch.uint8: "u8", torch.float8_e4m3fn: "fp8e4nv",
}  # fmt: skip
OPERATIONS = {**ARITHMETIC, **MATRICES, **MOVEMENT}


class Launcher:
    """Stands in for JITFunction.run.

    Attributes:
        seed: of the order in which programs and warps come.
        launched: how often each kernel was.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.launched = seed, Counter[str]()
        self._compiled: dict[Any, tuple[Program, int]] = {}

    def install(self) -> None:
        launcher = self
        JITFunction.run = lambda kernel, *args, **kwargs: launcher.run(kernel, *args, **kwargs)

    def run(self, kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        names = [param.name for param in kernel.params]
        values = dict(zip(names, args, strict=False)) | {key: kwargs[key] for key in kwargs if key in names}
        options = {key: value for key, value in kwargs.items() if key not in names}
        waits = "DEPENDENT" in values and CAPABILITY == 90  # as the engine launches it on such a GPU
        if waits:
            values["DEPENDENT"] = options["launch_pdl"] = True
        signature, constants, attributes, params = _specialize(kernel, values)
        key = kernel.fn, str((signature, constants, attributes, options))
        if key not in self._compiled:
            source = ASTSource(kernel, signature, constants, attributes)
            made = triton.compile(source, target=GPUTarget("cuda", CAPABILITY, 32), options=options)
            self._compiled[key] = Program(made.asm["ptx"]), made.metadata.shared
        self.launched[kernel.fn.__name__] += 1
        with np.errstate(all="ignore"):
            self._run(*self._compiled[key], params, tuple(grid), waits=waits)

    def _run(self, program: Program, shared: int, params: list[Any], grid: tuple[int, ...], *, waits: bool) -> None:
        whole = {param.untyped_storage().data_ptr(): param for param in params if isinstance(param, torch.Tensor)}
        bytes_of = [
            torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy() for tensor in whole.values()
        ]
        memory = Memory(bytes_of)
        starts = dict(zip(whole, memory.addresses, strict=True))
        numbers = [_as_number(param, starts) for param in params] + [np.zeros(1, np.int64)] * 3  # Triton's own
        grid = (*grid, 1, 1)[:3]
        order, warps = list(range(math.prod(grid))), list(range(program.num_threads // 32))
        rng = random.Random(self.seed)
        rng.shuffle(order)
        for place in order:
            rng.shuffle(warps)
            at = place % grid[0], place // grid[0] % grid[1], place // grid[0] // grid[1]
            Block(program, memory, numbers, at, grid, shared, OPERATIONS, waits=waits).run(warps)
        memory.bring_back()


def _specialize(
    kernel: Any, values: dict[str, Any]
) -> tuple[dict[str, str], dict[Any, Any], dict[Any, Any], list[Any]]:
    """As Triton does at run time: addresses and numbers that 16 divides, and numbers that are 1."""
    signature: dict[str, str] = {}
    constants, attributes, params = {}, {}, []
    for place, param in enumerate(kernel.params):
        value = values[param.name]
        is_one = isinstance(value, int) and value == 1 and not param.do_not_specialize
        if param.is_constexpr or is_one or value is None:
            signature[param.name], constants[(place,)] = "constexpr", value
            continue
        params.append(value)
        fixed = param.do_not_specialize or param.do_not_specialize_on_alignment
        if isinstance(value, torch.Tensor):
            signature[param.name], address = f"*{TYPES[value.dtype]}", value.data_ptr()
        else:
            address = value if isinstance(value, int) else 1
            signature[param.name] = "fp32" if isinstance(value, float) else "i32" if abs(value) < 2**31 else "i64"
        if address % 16 == 0 and not fixed:
            attributes[(place,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes, params


def _as_number(param: Any, starts: dict[int, int]) -> Any:
    """One number, in an array of as many bytes as the kernel reads."""
    if isinstance(param, torch.Tensor):
        start = param.untyped_storage().data_ptr()
        return np.array([starts[start] + param.data_ptr() - start])
    if isinstance(param, float):
        return np.array([param], np.float32)
    return np.array([param], np.int32 if abs(param) < 2**31 else np.int64)
