"""Instructions that each thread computes for itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch

from tests.m11.cuda.ptx.block import BOOL, F32, F64, I64, U8, U16, U32, U64, Array, Block, RefusedError
from tests.m11.cuda.ptx.program import Instruction

LETTERS = {"s": "i", "u": "u", "b": "u", "f": "f"}


class Half(NamedTuple):
    widen: Callable[[Array], Array]
    """16 bits to float32."""
    narrow: Callable[[Array], Array]


def _to_bf16(x: Array) -> Array:
    bits = np.ascontiguousarray(x, F32).view(U32).astype(U64)
    return np.where(np.isnan(x), 0x7FFF, bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(U16)


HALVES = {
    "bf16": Half(lambda bits: (bits.astype(U32) << 16).view(F32), _to_bf16),
    "f16": Half(lambda bits: bits.view(np.float16).astype(F32), lambda x: x.astype(np.float16).view(U16)),
}


def dtype_of(kind: str) -> np.dtype[Any]:
    """Of s32, b64, f32, pred."""
    return BOOL if kind == "pred" else np.dtype(f"{LETTERS[kind[0]]}{int(kind[1:]) // 8}")


def _read(block: Block, name: str, kind: str) -> Array:
    return HALVES[kind].widen(block.value(name, U16)) if kind in HALVES else block.value(name, dtype_of(kind))


def each(compute: Callable[..., Array]) -> Callable[[Block, Instruction], None]:
    """An instruction of which all operands and the result are of its last kind: two numbers of 16 bits, too."""

    def run(block: Block, its: Instruction) -> None:
        if {"NaN", "f32"} & {*its.kinds[:-1]}:
            raise RefusedError("not known")
        kind, (to, *operands) = its.kinds[-1], its.operands
        if kind == "f32x2":
            pairs = compute(*(block.value(name, U64).copy().view(F32) for name in operands)).astype(F32)
            block.set(to, pairs.view(U64))
        elif kind.endswith("x2"):
            half, words = HALVES[kind[:-2]], [block.value(name, U32) for name in operands]
            low, high = (
                half.narrow(compute(*(half.widen((word >> shift & 0xFFFF).astype(U16)) for word in words)))
                for shift in map(np.uint32, (0, 16))
            )
            block.set(to, low.astype(U32) | high.astype(U32) << np.uint32(16))
        elif kind in HALVES:
            block.set(to, HALVES[kind].narrow(compute(*(_read(block, name, kind) for name in operands))))
        else:
            dtype = dtype_of(kind)
            block.set(to, compute(*(block.value(name, dtype) for name in operands)).astype(dtype))

    return run


def _wider(kind: str) -> tuple[np.dtype[Any], np.dtype[Any]]:
    dtype = dtype_of(kind)
    return dtype, np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")


def multiply(block: Block, its: Instruction) -> None:
    """mul and mad."""
    to, a, b, *c = its.operands
    if "wide" in its.kinds:
        narrow, wide = _wider(its.kinds[-1])
        product = block.value(a, narrow).astype(wide) * block.value(b, narrow).astype(wide)
        block.set(to, product + block.value(c[0], wide) if c else product)
    elif "hi" in its.kinds:
        dtype = dtype_of(its.kinds[-1])
        pairs = zip(block.value(a, dtype).tolist(), block.value(b, dtype).tolist(), strict=True)
        block.set(to, np.array([x * y >> 8 * dtype.itemsize for x, y in pairs], dtype))
    else:
        each(lambda x, y, z=None: x * y if z is None else x * y + z)(block, its)


def _quotient(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return x / y
    return np.array([int(p / q) if q else 0 for p, q in zip(x.tolist(), y.tolist(), strict=True)], x.dtype)


def fused(block: Block, its: Instruction) -> None:
    """fma. Factors of 16 bits may have a sum in float32."""

    def compute(x: Array, y: Array, z: Array) -> Array:
        return x.astype(F64) * y.astype(F64) + z.astype(F64)

    if its.kinds[-2:] in (("f32", "bf16"), ("f32", "f16")):
        to, x, y, z = its.operands
        factors = (_read(block, name, its.kinds[-1]) for name in (x, y))
        block.set(to, compute(*factors, block.value(z, F32)).astype(F32))
    else:
        each(compute)(block, its)


def _extreme(of_floats: Any, of_others: Any) -> Callable[..., Array]:
    return lambda *several: reduce(of_floats if several[0].dtype.kind == "f" else of_others, several)


def shift(block: Block, its: Instruction) -> None:
    """shl and shr. By more bits than there are, nothing or the sign is left."""
    dtype, (to, a, b) = dtype_of(its.kinds[-1]), its.operands
    numbers, bits = block.value(a, dtype), 8 * dtype.itemsize
    count = block.value(b, U32).astype(I64)
    move = np.left_shift if its.name == "shl" else np.right_shift
    moved = move(numbers, np.minimum(count, bits - 1).astype(dtype))
    block.set(to, moved if dtype.kind == "i" else np.where(count < bits, moved, 0).astype(dtype))


def extract(block: Block, its: Instruction) -> None:
    """bfe."""
    dtype, (to, a, first, count) = dtype_of(its.kinds[-1]), its.operands
    above = np.array(8 * dtype.itemsize - int(first) - int(count), dtype)
    block.set(to, block.value(a, dtype) << above >> (above + np.array(int(first), dtype)))


def lop3(block: Block, its: Instruction) -> None:
    x, y, z = (block.value(name, U32) for name in its.operands[1:4])
    table, out = int(its.operands[4], 0), np.zeros(32, U32)
    for row in range(8):
        if table >> row & 1:
            out |= (x if row & 4 else ~x) & (y if row & 2 else ~y) & (z if row & 1 else ~z)
    block.set(its.operands[0], out)


def prmt(block: Block, its: Instruction) -> None:
    x, y, chosen = (block.value(name, U32) for name in its.operands[1:4])
    both, out = x.astype(U64) | y.astype(U64) << np.uint64(32), np.zeros(32, U32)
    for place in range(4):
        which = chosen >> np.uint32(4 * place) & np.uint32(15)
        byte = (both >> (which & 7).astype(U64) * np.uint64(8) & np.uint64(255)).astype(U32)
        byte = np.where(which & 8, np.where(byte & 128, 255, 0), byte).astype(U32)
        out |= byte << np.uint32(8 * place)
    block.set(its.operands[0], out)


COMPARISONS = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def setp(block: Block, its: Instruction) -> None:
    if len(its.kinds) != 2 or "|" in its.operands[0]:
        raise RefusedError("not known")
    comparison, kind = its.kinds
    x, y = (_read(block, name, kind) for name in its.operands[1:])
    no_number = np.isnan(x) | np.isnan(y) if x.dtype.kind == "f" else np.zeros(32, bool)
    if comparison in ("num", "nan"):
        found = no_number if comparison == "nan" else ~no_number
    else:
        found = COMPARISONS[comparison[:2]](x, y) & ~no_number
        found |= no_number & (len(comparison) == 3)  # ltu and its like
    block.set(its.operands[0], found)


def selp(block: Block, its: Instruction) -> None:
    dtype, (to, a, b, which) = dtype_of(its.kinds[-1]), its.operands
    block.set(to, np.where(block.value(which, BOOL), block.value(a, dtype), block.value(b, dtype)))


def convert(block: Block, its: Instruction) -> None:
    to_kind, of_kind, (to, *operands) = its.kinds[-2], its.kinds[-1], its.operands
    if of_kind == "e4m3x2":
        pair = torch.from_numpy(block.value(operands[0], U16).copy().view(U8)).view(torch.float8_e4m3fn)
        block.set(to, pair.half().numpy().view(U32))
    elif to_kind.endswith("x2"):
        high, low = (HALVES[to_kind[:-2]].narrow(block.value(name, F32)).astype(U32) for name in operands)
        block.set(to, high << np.uint32(16) | low)
    else:
        numbers = _read(block, operands[0], of_kind)
        if to_kind in HALVES:
            block.set(to, HALVES[to_kind].narrow(numbers.astype(F32)))
        elif numbers.dtype.kind == "f" and to_kind[0] != "f":
            block.set(to, _to_whole(numbers, dtype_of(to_kind), its.kinds))
        else:
            block.set(to, numbers.astype(dtype_of(to_kind)))


def _to_whole(numbers: Array, dtype: np.dtype[Any], kinds: tuple[str, ...]) -> Array:
    """NaN becomes 0, and what is too large the largest."""
    rounding = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}
    whole, limits = next(rounding[kind] for kind in kinds if kind in rounding)(numbers.astype(F64)), np.iinfo(dtype)
    inside = (whole >= float(limits.min)) & (whole < float(limits.max))
    exact = np.where(inside, whole, 0).astype(dtype)
    return np.where(inside | np.isnan(whole), exact, np.where(whole > 0, limits.max, limits.min)).astype(dtype)


ARITHMETIC: dict[str, Callable[[Block, Instruction], None]] = {
    "add": each(np.add), "sub": each(np.subtract), "neg": each(np.negative), "abs": each(np.abs), "mul": multiply,
    "mad": multiply, "fma": fused, "div": each(_quotient), "min": each(_extreme(np.fmin, np.minimum)),
    "max": each(_extreme(np.fmax, np.maximum)), "ex2": each(np.exp2), "lg2": each(np.log2), "sqrt": each(np.sqrt),
    "rsqrt": each(lambda x: 1 / np.sqrt(x)), "rcp": each(np.reciprocal), "and": each(np.bitwise_and),
    "or": each(np.bitwise_or), "xor": each(np.bitwise_xor), "not": each(np.invert), "shl": shift, "shr": shift,
    "bfe": extract, "lop3": lop3, "prmt": prmt, "setp": setp, "selp": selp, "cvt": convert,
    "popc": each(np.bitwise_count),
}  # fmt: skip
