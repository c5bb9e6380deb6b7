"""How a GPU's programs share a product with codes: tiles of the result, and splits of the columns.

    few rows     the lines of a weight are dealt out to several programs where its outputs keep less than half of
                 the multiprocessors reading, or less than all of them for many lines
    many rows    larger tiles, and nothing is split
    invariant    one tile for all, and nothing is split: a row's bits depend on the row alone

Nothing is tried out when an engine starts: the sizes decide.

vLLM: none
"""

from __future__ import annotations

from typing import NamedTuple

from folovllm.attention.splits import SMS

FEWEST_LINES, MANY_LINES = 2, 8  # of a split
MOST_SPLITS = 8


class Plan(NamedTuple):
    """A program's tile of the result, and into how many splits the lines are dealt out."""

    rows: int
    outs: int
    splits: int
    warps: int
    stages: int


MOST_ROWS = (16, 32, 256)
"""Of the first three plans; the last takes any number. A kernel is compiled for each."""


def choose_plan(
    num_rows: int, outs: int, lines: int, element_size: int, *, invariant: bool, small: bool,
    tensor_memory: bool = False,
) -> Plan:  # fmt: skip
    """By the weight's size, and by which of MOST_ROWS there are.

    small: a GPU with less shared memory than Hopper's. tensor_memory: one whose matrix units keep sums and weights in a
        memory of 512 columns; the largest tile takes all of them, and one of 32 rows spills registers.
    """
    few = num_rows <= MOST_ROWS[0] and not invariant
    if element_size > 2:  # by threads, not by matrix units
        tile_rows, tile_outs, warps, stages = 32, 32, 4, 2
    elif few:
        tile_rows, tile_outs, warps, stages = 16, 64, 4, 4
    elif (invariant or num_rows <= MOST_ROWS[1]) and not tensor_memory:
        tile_rows, tile_outs, warps, stages = 32, 64, 4, 3 if small or invariant else 4
    elif invariant or num_rows <= MOST_ROWS[2] or small or tensor_memory:
        tile_rows, tile_outs, warps, stages = 64, 64, 4, 2 if small else 3
    else:
        tile_rows, tile_outs, warps, stages = 64, 128, 8, 3
    splits = 1
    if not invariant and num_rows <= MOST_ROWS[2]:
        programs = -(-outs // tile_outs)
        while splits < MOST_SPLITS and 2 * splits * programs <= SMS:
            halves = 4 * splits * programs <= SMS
            if 2 * splits * (FEWEST_LINES if halves else MANY_LINES) > lines or not (halves or few):
                break
            splits *= 2
    return Plan(tile_rows, tile_outs, splits, warps, stages)
