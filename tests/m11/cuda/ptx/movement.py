"""Instructions that move numbers: between registers, threads, shared memory and the device's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.m11.cuda.ptx.arithmetic import dtype_of
from tests.m11.cuda.ptx.block import BOOL, LANES, SPOILT, U8, U32, Block, RefusedError
from tests.m11.cuda.ptx.matrices import names
from tests.m11.cuda.ptx.program import Instruction


def mov(block: Block, its: Instruction) -> None:
    """Several registers in braces are parts of one, the lowest bits first."""
    (to, of), dtype = its.operands, dtype_of(its.kinds[-1])
    if to.startswith("{"):
        parts, word = names(to), block.value(of, dtype)
        bits = 8 * dtype.itemsize // len(parts)
        for number, part in enumerate(parts):
            block.set(part, (word >> np.array(bits * number, dtype)).astype(np.dtype(f"u{bits // 8}")))
    elif of.startswith("{"):
        parts, word = names(of), np.zeros(32, dtype)
        bits = 8 * dtype.itemsize // len(parts)
        for number, part in enumerate(parts):
            word |= block.value(part, np.dtype(f"u{bits // 8}")).astype(dtype) << np.array(bits * number, dtype)
        block.set(to, word)
    else:
        block.set(to, block.value(of, dtype))


def _count(its: Instruction) -> int:
    return next((int(kind[1]) for kind in its.kinds if kind in ("v2", "v4", "v8")), 1)


def load(block: Block, its: Instruction) -> None:
    space, dtype, (to, of) = its.kinds[0], dtype_of(its.kinds[-1]), its.operands
    if space == "param":
        number = block.params[int(of.rstrip("]").rpartition("_")[2])]
        block.set(to, np.full(32, number.view(dtype)))
        return
    found = block.load(space, block.address(of), _count(its) * dtype.itemsize, block.active)
    for register, numbers in zip(names(to), found.view(dtype).T, strict=True):
        block.set(register, np.ascontiguousarray(numbers))


def store(block: Block, its: Instruction) -> None:
    (to, of), dtype = its.operands, dtype_of(its.kinds[-1])
    numbers = np.stack([block.value(name, dtype) for name in names(of)], 1)
    block.store(its.kinds[0], block.address(to), np.ascontiguousarray(numbers).view(U8), block.active)


def copy(block: Block, its: Instruction) -> None:
    """cp.async. Its last operand says how many bytes are read; the others are zeros."""
    groups = block.copies[block.warp]
    if "commit_group" in its.kinds:
        groups.append([])
    elif "wait_group" in its.kinds:
        while len(groups) - 1 > int(its.operands[0]):
            for place, numbers, lanes in groups.pop(0):
                block.store("shared", place, numbers, lanes)
    elif "prefetch" in its.kinds:
        size = block.value(its.operands[1], U32)[block.active]
        for address, count in zip(block.address(its.operands[0])[block.active], size, strict=True):
            block.memory.places(np.array([address, address + count - 16]), 16)
    else:
        to, of, size = block.address(its.operands[0]), block.address(its.operands[1]), int(its.operands[2], 0)
        count = block.value(its.operands[3], U32) if len(its.operands) > 3 else np.full(32, size)
        if ((count > 0) & (count != size))[block.active].any():
            raise RefusedError("not known")
        numbers = block.load("global", of, size, block.active & (count > 0))
        block.store("shared", to, np.full((32, size), SPOILT, U8), block.active)
        groups[-1].append((to, numbers, block.active.copy()))


def shuffle(block: Block, its: Instruction) -> None:
    mode, (to, of, offset, *_) = its.kinds[1], its.operands
    by, numbers = block.value(offset, U32).astype(int), block.value(of, U32)
    other = {"bfly": LANES ^ by, "idx": by & 31, "up": LANES - by, "down": LANES + by}[mode]
    exists = (other >= 0) & (other < 32)
    if not block.active[other[exists & block.active]].all():
        raise RefusedError("with a thread that does not take part")
    to, *whether = to.split("|")
    block.set(to, np.where(exists, numbers[other.clip(0, 31)], numbers))
    for name in whether:
        block.set(name, exists)


def _mask(lanes: Any) -> Any:
    return np.full(32, sum(1 << int(lane) for lane in np.flatnonzero(lanes)), U32)


def vote(block: Block, its: Instruction) -> None:
    if its.kinds[1] != "ballot":
        raise RefusedError("not known")
    block.set(its.operands[0], _mask(block.value(its.operands[1], BOOL) & block.active))


def reduce(block: Block, its: Instruction) -> None:
    """redux: over the threads of a warp."""
    fold = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or}
    numbers = block.value(its.operands[1], dtype_of(its.kinds[-1]))[block.active]
    block.set(its.operands[0], np.full(32, fold[its.kinds[1]].reduce(numbers), numbers.dtype))


def atomic(block: Block, its: Instruction) -> None:
    """One thread after the other. red returns nothing."""
    if its.kinds[-2] != "add":
        raise RefusedError("not known")
    to, where, of = its.operands if its.name == "atom" else ("_", *its.operands)
    dtype = dtype_of(its.kinds[-1])
    addresses, more, before = block.address(where), block.value(of, dtype), np.zeros(32, dtype)
    for lane in np.flatnonzero(block.active):
        alone = lane == LANES
        before[lane] = block.load(its.kinds[0], addresses, dtype.itemsize, alone)[lane].view(dtype)[0]
        after = np.broadcast_to((before + more).view(U8).reshape(32, -1), (32, dtype.itemsize))
        block.store(its.kinds[0], addresses, after, alone)
    block.set(to, before)


def elect(block: Block, its: Instruction) -> None:
    block.set(its.operands[0].partition("|")[2], np.flatnonzero(block.active)[0] == LANES)


def depend(block: Block, its: Instruction) -> None:
    """griddepcontrol."""
    block.may_touch[block.warp] |= its.kinds[0] == "wait"


def nothing(block: Block, its: Instruction) -> None:
    """What orders accesses to memory: they are in order here."""


MOVEMENT: dict[str, Callable[[Block, Instruction], None]] = {
    "mov": mov, "ld": load, "st": store, "cp": copy, "shfl": shuffle, "vote": vote, "redux": reduce, "atom": atomic,
    "red": atomic, "elect": elect, "griddepcontrol": depend, "fence": nothing, "membar": nothing,
}  # fmt: skip
