"""Decode steps of Qwen3-30B-A3B on an H200: the router as torch computes it, and as two kernels do.

    a layer   norm, qkv, attention, o, norm     as in gpu_kernels.py; attention merges its splits and turns q and k
              router                            x in float32 and the gate's product; then softmax to the sorted pairs
              experts                           the weights that are read, two launches; one adds a token's parts

What torch launches between the gate's product and those of the experts is counted here, while it runs on a CPU. Each
of these kernels is taken to be as short as any.

vLLM: none
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from folovllm.bench.report import Line, Report, Row
from folovllm.bench.shapes import ModelShape
from folovllm.layers.moe import group, route
from workshop.bench.gpu_changes import BATCHES, H200, MERGED, TURNED, gap_of_launches
from workshop.bench.gpu_kernels import (
    ATTENTION_LAUNCH,
    COPY_SHARE,
    HOST_LINK,
    ITEM,
    LAUNCH,
    PRODUCT_LAUNCH,
    UPLOAD_OPERATIONS,
    attention_seconds,
    draw_seconds,
    product_seconds,
)
from workshop.bench.workload_steps import host_us

COLUMNS = ["requests", "launches_before", "us_before", "router_before", "launches", "us", "router", "host", "gain"]
CONTEXT = 1024
MODEL = ModelShape.of_config(
    "qwen3-30b-a3b",
    {
        "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151_936, "num_experts": 128,
        "num_experts_per_tok": 8, "moe_intermediate_size": 768,
    },
)  # fmt: skip
SORT = 4  # launches of a sort of up to 4,096 numbers: a range, two copies, and the sort (ATen/native/cuda/Sort.cpp)
PAIRS = 1024  # that a program of group looks at together
# Assumptions about what nobody has measured.
FLOAT32 = 30e12  # operations/s of the gate's product, which has few tiles
ROUND, LOOK = 0.25e-6, 0.7e-6  # seconds: a round of route, of 66 instructions; what group reads and adds up at a time

Part = tuple[int, float]
"""Launches, and seconds of their kernels."""


class Counted(TorchDispatchMode):
    """Counts what torch would launch on a GPU."""

    launches = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        if "view" not in name and not func.is_view:
            self.launches += SORT if name.startswith("aten::sort") else 1
        return func(*args, **(kwargs or {}))


def launches_of_torch(rows: int) -> int:
    """From the router's logits to pairs that are sorted by expert."""
    logits = torch.randn(rows, MODEL.num_experts)
    with Counted() as counted:
        group(route(logits, MODEL.top_k, renormalize=True).experts, MODEL.num_experts)
    return counted.launches


def by_torch(rows: int) -> Part:
    count = launches_of_torch(rows)
    return count, count * LAUNCH


def by_two_kernels(rows: int) -> Part:
    looks = 2 * -(-rows * MODEL.top_k // PAIRS)
    return 2, 2 * LAUNCH + MODEL.top_k * ROUND + looks * LOOK


def gate(rows: int) -> Part:
    """x in float32, and its product."""
    hidden, outs = MODEL.hidden, MODEL.num_experts
    read = 4 * (outs * hidden + rows * (hidden + outs)) / (COPY_SHARE * H200.bandwidth)
    seconds = max(read, 2 * rows * outs * hidden / FLOAT32) + PRODUCT_LAUNCH
    return 2, small(rows, 3 * hidden) + seconds


def small(rows: int, numbers: int) -> float:
    return LAUNCH + rows * numbers * ITEM / H200.bandwidth


def others(rows: int) -> Iterator[Part]:
    """Of a layer, all but the router."""
    of, contexts = MODEL, [CONTEXT] * rows
    width = of.heads * of.head_dim
    yield 2, 2 * small(rows, 4 * of.hidden)
    for n, k in ((width + 2 * of.kv_heads * of.head_dim, of.hidden), (of.hidden, width)):
        yield 1, product_seconds(H200, rows, n, k)
    attention = attention_seconds(H200, contexts, of.kv_heads, 2 * of.head_dim * ITEM)
    yield 1, attention + ATTENTION_LAUNCH + 1e-6 * (MERGED + TURNED)
    read = of.num_experts * (1 - (1 - of.top_k / of.num_experts) ** rows) * 3 * of.hidden * of.expert_size
    yield 2, ITEM * read / (COPY_SHARE * H200.bandwidth) + 2 * PRODUCT_LAUNCH
    yield 1, small(rows, (of.top_k + 1) * of.hidden)


def step_us(rows: int, choice: Part) -> tuple[float, float]:
    """Microseconds of a step, and of its routers."""
    of, gap = MODEL, gap_of_launches()

    def us(parts: list[Part]) -> float:
        return sum(1e6 * seconds + gap * count for count, seconds in parts)

    upload = rows * (4 * 8 + 4 * CONTEXT // 16) / HOST_LINK + UPLOAD_OPERATIONS * LAUNCH
    once = [
        (1, small(rows, 4 * of.hidden)), (1, product_seconds(H200, rows, of.vocab, of.hidden)),
        (1, draw_seconds(H200, rows, of.vocab) + LAUNCH), (UPLOAD_OPERATIONS, upload),
    ]  # fmt: skip
    router = of.layers * us([gate(rows), choice])
    return router + of.layers * us(list(others(rows))) + us(once), router


def run(args: argparse.Namespace) -> Report:
    """A row for each number of requests."""
    lines: list[Line] = []
    for rows in BATCHES:
        shared = sum(count for count, _ in [gate(rows), *others(rows)])
        row: Row = {"requests": rows}
        for suffix, choice in (("_before", by_torch(rows)), ("", by_two_kernels(rows))):
            whole, router = step_us(rows, choice)
            row |= {f"launches{suffix}": shared + choice[0], f"us{suffix}": whole, f"router{suffix}": router / whole}
        lines.append((row | {"host": host_us(rows), "gain": row["us_before"] / row["us"]}, {}))
    notes = [
        "A prediction: nothing was measured. Launches of a layer; microseconds of the device for a decode step of "
        f"sequences of {CONTEXT:,} tokens, bfloat16; of them, the routers' share, with the gate's product; host: "
        "what it does in a step of Qwen3-0.6B, beside the device. What torch launches was counted.",
    ]
    return Report.of(args, "Decode steps of Qwen3-30B-A3B on an H200, predicted", COLUMNS, lines, notes)
