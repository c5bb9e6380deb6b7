"""Instructions in which a warp's threads hold a matrix together.

A tile of 8 by 8 numbers of 16 bits: thread i has numbers 2 * (i % 4) and the next one of row i // 4, in one register.
A sum of 16 by 8 in float32: thread i has the same places of rows i // 4 and i // 4 + 8, in four registers.
"""

from __future__ import annotations

import re

import numpy as np

from tests.m11.cuda.ptx.arithmetic import HALVES
from tests.m11.cuda.ptx.block import BOOL, F32, F64, LANES, U16, U32, U64, Array, Block, RefusedError
from tests.m11.cuda.ptx.program import Instruction

ROW, COLUMN = LANES >> 2, 2 * (LANES & 3)
SWIZZLES = {1: 128, 2: 64, 3: 32}  # bytes of a row whose pieces of 16 bytes are exchanged


def names(operand: str) -> list[str]:
    return [name.strip() for name in operand.strip("{} ").split(",")]


def _tiles(block: Block, operand: str, kind: str) -> list[Array]:
    """[8, 8] each, in float64."""
    found = []
    for name in names(operand):
        word, tile = block.value(name, U32), np.zeros((8, 8))
        for place, half in enumerate((word & 0xFFFF, word >> 16)):
            tile[ROW, COLUMN + place] = HALVES[kind].widen(half.astype(U16))
        found.append(tile)
    return found


def _add(block: Block, sums: str, start: str, product: Array, keep: Array | None = None) -> None:
    """To 16 rows of sums, 8 columns in each four registers."""
    for number, (to, of) in enumerate(zip(names(sums), names(start), strict=True)):
        tile, place = divmod(number, 4)
        before = block.value(of, F32).astype(F64)
        before = before if keep is None else np.where(keep, before, 0)
        block.set(to, (before + product[ROW + 8 * (place >> 1), 8 * tile + COLUMN + (place & 1)]).astype(F32))


def mma(block: Block, its: Instruction) -> None:
    if "m16n8k16" not in its.kinds or not block.active.all():
        raise RefusedError("not known")
    kind, (sums, left, right, start) = its.kinds[-2], its.operands
    a, b = _tiles(block, left, kind), _tiles(block, right, kind)
    rows = np.block([[a[0], a[2]], [a[1], a[3]]])
    _add(block, sums, start, rows @ np.concatenate([tile.T for tile in b]))


def ldmatrix(block: Block, its: Instruction) -> None:
    """Thread i of the first 8, 16 or 32 names row i of the tiles one below the other."""
    registers, addresses = names(its.operands[0]), block.address(its.operands[1])
    rows = block.load("shared", addresses, 16, 8 * len(registers) > LANES).view(U16)
    for number, name in enumerate(registers):
        tile = rows[8 * number : 8 * number + 8]
        tile = tile.T if "trans" in its.kinds else tile
        block.set(name, tile[ROW, COLUMN].astype(U32) | tile[ROW, COLUMN + 1].astype(U32) << np.uint32(16))


def stmatrix(block: Block, its: Instruction) -> None:
    addresses, registers, rows = block.address(its.operands[0]), names(its.operands[1]), np.zeros((32, 8), U16)
    for number, name in enumerate(registers):
        word, tile = block.value(name, U32), np.zeros((8, 8), U16)
        tile[ROW, COLUMN], tile[ROW, COLUMN + 1] = word & 0xFFFF, word >> 16
        rows[8 * number : 8 * number + 8] = tile.T if "trans" in its.kinds else tile
    block.store("shared", addresses, rows.view(np.uint8), 8 * len(registers) > LANES)


def _in_shared(block: Block, descriptor: str, rows: int, kind: str, *, transposed: bool) -> Array:
    """[rows, 16] of an operand of wgmma, float64. transposed: its rows are side by side in memory."""
    word = int(block.value(descriptor, U64)[0])
    start, leading, stride = ((word >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
    width = SWIZZLES[word >> 62]
    row, k = np.arange(rows)[:, None], np.arange(16)[None, :]
    if transposed:
        at = start + row // (width // 2) * leading + k // 8 * stride + k % 8 * width + row % (width // 2) * 2
    else:
        at = start + row // 8 * stride + row % 8 * width + 2 * k
    at = at ^ (at >> 7 & width // 16 - 1) << 4
    bits = np.stack([block.shared[at], block.shared[at + 1]], -1).view(U16)[..., 0]
    return HALVES[kind].widen(bits).astype(F64)


def wgmma(block: Block, its: Instruction) -> None:
    """A warp's quarter of 64 rows, at once: that its operands stay until the wait is not looked at."""
    if its.kinds[0] != "mma_async":
        return
    found = re.search(r"\.m64n(\d+)k16\.", its.text)
    if found is None or not block.active.all():
        raise RefusedError("not known")
    kind, (sums, left, right, keep, *flags) = its.kinds[-1], its.operands
    if left.startswith("{"):
        a = _tiles(block, left, kind)
        rows = np.block([[a[0], a[2]], [a[1], a[3]]])
    else:
        first = block.warp % 4 * 16
        rows = _in_shared(block, left, 64, kind, transposed=flags[-2] == "1")[first : first + 16]
    columns = _in_shared(block, right, int(found[1]), kind, transposed=flags[-1] == "1")
    _add(block, sums, sums, rows @ columns.T, block.value(keep, BOOL))


MATRICES = {"mma": mma, "ldmatrix": ldmatrix, "stmatrix": stmatrix, "wgmma": wgmma}
