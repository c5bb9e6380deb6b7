"""The threads of one program: their registers, their shared memory, the device's memory, and who runs when."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.m11.cuda.ptx.program import Instruction, Program

Array = np.ndarray[Any, Any]
LANES = np.arange(32)
SPOILT = 0xFF
BOOL, U8, U16, U32, U64, I64, F32, F64 = map(np.dtype, (bool, "u1", "u2", "u4", "u8", "i8", "f4", "f8"))
REGISTERS = {"%rs": U16, "%rd": U64, "%r": U32, "%p": BOOL}
NAMED = {"elected": BOOL}  # what our own assembly declares besides words of 32 bits


class RefusedError(Exception):
    """What a GPU would refuse, or what is not known here."""


class Memory:
    """The device's: tensors with gaps between them, which nothing may touch."""

    BASE, ALIGNMENT = 1 << 30, 512

    def __init__(self, arrays: Sequence[Array]) -> None:
        starts, end = [], 0
        for array in arrays:
            starts.append(end + self.ALIGNMENT)
            end = -(-(starts[-1] + array.nbytes) // self.ALIGNMENT) * self.ALIGNMENT
        self.data, self.exists = np.zeros(end + self.ALIGNMENT, U8), np.zeros(end + self.ALIGNMENT, BOOL)
        self.arrays, self.addresses = arrays, [self.BASE + start for start in starts]
        for start, array in zip(starts, arrays, strict=True):
            self.data[start : start + array.nbytes] = array
            self.exists[start : start + array.nbytes] = True

    def bring_back(self) -> None:
        for address, array in zip(self.addresses, self.arrays, strict=True):
            array[:] = self.data[address - self.BASE :][: array.nbytes]

    def places(self, addresses: Array, size: int) -> Array:
        """[len(addresses), size] of single bytes."""
        places = (addresses - self.BASE)[:, None] + np.arange(size)
        if places.size and (places.min() < 0 or places.max() >= len(self.data) or not self.exists[places].all()):
            raise RefusedError("where no tensor is")
        if (addresses % size).any():
            raise RefusedError("at an odd address")
        return places


class Block:
    """One program's threads.

    Attributes:
        warp: which one runs.
        here: [32] which of its threads are at this instruction.  active: those that take part.
    """

    def __init__(
        self, program: Program, memory: Memory, params: list[Any], place: Sequence[int], grid: Sequence[int],
        shared_bytes: int, operations: dict[str, Callable[[Block, Instruction], None]], *, waits: bool,
    ) -> None:  # fmt: skip
        self.program, self.memory, self.params, self.operations = program, memory, params, operations
        warps = program.num_threads // 32
        self.shared = np.full(shared_bytes, SPOILT, U8)
        self._registers: dict[str, Array] = {}
        self._next = np.zeros((warps, 32), int)
        self._gone = np.zeros((warps, 32), bool)
        self._at_barrier = np.zeros(warps, bool)
        self.copies: list[list[list[Any]]] = [[[]] for _ in range(warps)]  # of each warp: groups of what is on its way
        self.may_touch = np.full(warps, not waits)
        self.warp, self.here, self.active = 0, np.ones(32, bool), np.ones(32, bool)
        numbers = dict(zip(("%ctaid.x", "%ctaid.y", "%ctaid.z"), place, strict=True))
        self._numbers = numbers | dict(zip(("%nctaid.x", "%nctaid.y", "%nctaid.z"), grid, strict=True))

    def run(self, order: Sequence[int]) -> None:
        """order: in which the warps come."""
        while not self._gone.all():
            for warp in order:
                if not self._gone[warp].all():
                    self.warp = warp
                    self._run_warp()
            if (self._at_barrier != ~self._gone.all(1)).any():
                raise RefusedError("some warps wait at a barrier for ever")
            self._at_barrier[:] = False

    def _run_warp(self) -> None:
        """Up to the next barrier. The threads that are furthest behind go first."""
        at, gone = self._next[self.warp], self._gone[self.warp]
        while not gone.all():
            first = at[~gone].min()
            instruction = self.program.code[first]
            self.here = self.active = (at == first) & ~gone
            if instruction.guard is not None:
                holds = self.value(instruction.guard, BOOL)
                self.active = self.here & (~holds if instruction.negated else holds)
            at[self.here] = first + 1
            if instruction.name == "bra":
                at[self.active] = self.program.labels[instruction.operands[0]]
            elif instruction.name == "ret":
                gone |= self.active
            elif instruction.name == "bar":
                if (self.here != ~gone).any():
                    raise RefusedError("some threads of a warp are not at the barrier")
                self._at_barrier[self.warp] = True
                return
            else:
                try:
                    self.operations[instruction.name](self, instruction)
                except Exception as error:
                    raise RefusedError(f"{instruction.text}: {error!r}") from error

    def register(self, name: str) -> Array:
        """Of this warp, [32]; to write to."""
        if name not in self._registers:
            dtype = next((REGISTERS[kind] for kind in REGISTERS if name.startswith(kind)), NAMED.get(name, U32))
            self._registers[name] = np.zeros((self.program.num_threads // 32, 32), dtype)
        return self._registers[name][self.warp]

    def value(self, name: str, dtype: np.dtype[Any]) -> Array:
        """What an operand says, [32]: the same bits, as many as dtype has."""
        bits = np.dtype(f"u{dtype.itemsize}")
        if name == "%tid.x":
            return (self.warp * 32 + LANES).astype(bits).view(dtype)
        if name in self._numbers:
            return np.full(32, self._numbers[name], bits).view(dtype)
        if name == "global_smem":
            return np.zeros(32, dtype)
        if name[:2] == "0f":
            return np.full(32, int(name[2:], 16), U32).view(F32)
        if name[:2] == "0d":
            return np.full(32, int(name[2:], 16), U64).view(F64)
        if re.match(r"-?\d", name):
            number = int(name.rstrip("U"), 0) & (1 << 8 * dtype.itemsize) - 1
            return np.full(32, bool(number)) if dtype == BOOL else np.full(32, number, bits).view(dtype)
        found = self.register(name)
        return found.view(dtype) if found.itemsize == dtype.itemsize else found.astype(bits).view(dtype)

    def set(self, name: str, values: Array) -> None:
        """Of the threads that take part. Signed numbers fill a wider register with their sign."""
        if name == "_":
            return
        register = self.register(name)
        if register.dtype == BOOL:
            values = values.astype(BOOL)
        elif values.dtype.kind == "i":
            values = values.astype(np.dtype(f"i{register.itemsize}")).view(register.dtype)
        elif values.dtype.kind == "f":
            values = values.view(np.dtype(f"u{values.itemsize}"))
        register[self.active] = values.astype(register.dtype)[self.active]

    def address(self, operand: str) -> Array:
        found = re.match(r"\[ ?([%\w]+) ?(?:\+ ?(-?\d+))? ?\]", operand)
        assert found is not None, operand
        return self.value(found[1], U64).astype(I64) + int(found[2] or 0)

    def load(self, space: str, addresses: Array, size: int, lanes: Array) -> Array:
        """[32, size] bytes, of those lanes; zeros of the others."""
        found = np.zeros((32, size), U8)
        if space == "global":
            self._check_order()
            found[lanes] = self.memory.data[self.memory.places(addresses[lanes], size)]
        else:
            found[lanes] = self.shared[self._shared_places(addresses[lanes], size)]
        return found

    def store(self, space: str, addresses: Array, numbers: Array, lanes: Array) -> None:
        """numbers [32, size] bytes."""
        size = numbers.shape[1]
        if space == "global":
            self._check_order()
            self.memory.data[self.memory.places(addresses[lanes], size)] = numbers[lanes]
        else:
            self.shared[self._shared_places(addresses[lanes], size)] = numbers[lanes]

    def _check_order(self) -> None:
        if not self.may_touch[self.warp]:
            raise RefusedError("before the kernel in front is over")

    def _shared_places(self, addresses: Array, size: int) -> Array:
        places = addresses[:, None] + np.arange(size)
        if places.size and (places.min() < 0 or places.max() >= len(self.shared)):
            raise RefusedError("outside of shared memory")
        return places
