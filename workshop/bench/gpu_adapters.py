"""What adapters add to a decode step of Qwen3-8B on an H200, from the bytes that they read and from their launches.

A layer's four products have two launches more each. Shrinking reads A once for each adapter of the step, expanding B,
with the zeros of a stacked layer's. Norms and SwiGLU are kernels of their own then, as they are with many rows.

vLLM: none
"""

from __future__ import annotations

import argparse
import math

from folovllm.bench.report import Line, Report
from workshop.bench.gpu_changes import BATCHES, H200, WARP, gap_of_launches
from workshop.bench.gpu_kernels import COPY_SHARE, ITEM, LAUNCH, PRODUCT_LAUNCH, products_of, shard_of
from workshop.bench.gpu_others import LARGE, SMS, large_us

COLUMNS = ["requests", "none", "none_in_one_graph", "one_adapter", "an_adapter_each"]
PARTS = {"qkv": 3, "o": 1, "gate and up": 2, "down": 1}  # stacked in a layer, by products_of()'s names
RANK, TILE, COLUMNS_OF_X, WARPS, GROUPING = 16, 16, 1024, 4, 6  # GROUPING: launches that sort a step's rows


def product_us(rows: int, adapters: int, n: int, k: int, parts: int) -> float:
    """Of both launches behind one product."""
    rank, item = RANK * parts, 4  # `low` is float32
    low = item * rows * rank * math.ceil(k / COLUMNS_OF_X)
    shrink, expand = (
        ITEM * adapters * rank * k + ITEM * rows * k + low,
        ITEM * adapters * rank * n + 2 * ITEM * rows * n + low,
    )
    tiles = max(adapters, math.ceil(rows / TILE))
    programs = tiles * parts * math.ceil(k / COLUMNS_OF_X)
    alone = math.ceil(programs / (8 * SMS)) * ITEM * 2 * TILE * min(k, COLUMNS_OF_X) / (WARPS * WARP)  # of one program
    rate = COPY_SHARE * H200.bandwidth
    return 1e6 * (max(shrink / rate, alone) + expand / rate + 2 * PRODUCT_LAUNCH) + 2 * gap_of_launches()


def added_us(rows: int, adapters: int) -> float:
    """Of a whole step. adapters: 0 launches the kernels all the same, and they end at once."""
    layers, sizes = shard_of(LARGE, 1).layers, products_of(LARGE)
    grouping = GROUPING * (1e6 * LAUNCH + gap_of_launches())
    if not adapters:
        return grouping + layers * len(PARTS) * 2 * (1e6 * PRODUCT_LAUNCH + gap_of_launches())
    return grouping + layers * sum(product_us(rows, adapters, *sizes[name], parts) for name, parts in PARTS.items())


def run(args: argparse.Namespace) -> Report:
    lines: list[Line] = []
    for rows in BATCHES:
        us = large_us(rows)
        without, apart = us["bf16"], us["bf16_before"]
        values = [rows, without, apart + added_us(rows, 0), apart + added_us(rows, 1), apart + added_us(rows, rows)]
        lines.append((dict(zip(COLUMNS, values, strict=True)), {}))
    notes = [
        "A prediction: nothing was measured. Microseconds of the device for a decode step of 1, 8, 64 and 256 "
        f"sequences of 164 tokens, adapters of rank {RANK} on all seven matrices. none_in_one_graph: without "
        "adapters, if only graphs that add them were recorded."
    ]
    return Report.of(args, "Decode steps of Qwen3-8B with adapters on an H200, predicted", COLUMNS, lines, notes)
