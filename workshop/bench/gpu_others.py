"""Steps of other engines than the workload's on an H200: weights in 4 bits, an 8B shape, draft tokens.

    codes     a program takes the lines of a weight one after the other, each for as long as its instructions last, and
              programs share a multiprocessor. What the sum of a layer's products took beyond that is a factor
    drafts    a step verifies the drafts of each sequence as rows of products, and of one tile of attention. What the
              measured one took beyond a step of as many plain sequences is the host's, and stays

vLLM: none
"""

from __future__ import annotations

import argparse
import math

from folovllm.bench.report import Line, Report
from folovllm.layers.quantization.plan import choose_plan
from workshop.bench.gpu_changes import (
    BATCHES,
    BF16,
    FEW_ROWS,
    H200,
    MERGED,
    apply,
    calibrated,
    draw_by_many,
    gap_of_launches,
    head_us,
    merge_in_decode,
    read_rows,
    turn_in_decode,
)
from workshop.bench.gpu_kernels import (
    CODE_INSTRUCTIONS,
    COPY_SHARE,
    ISSUE_SHARE,
    ISSUES,
    ITEM,
    LAUNCH,
    PRODUCT_LAUNCH,
    SHAPE,
    SMALL,
    codes_bytes,
    kernels,
    products_of,
    shard_of,
)
from workshop.bench.workload_steps import host_us

LARGE = "qwen3-8b"
COLUMNS = ["requests", "bf16_before", "bf16", "w4a16_before", "w4a16", "host", "ratio"]
FEW = 16  # rows of which layers of that size have norm, product and SwiGLU in one kernel
SMS = 132
LINE, FIRST = 256, 1.2e-6  # columns of a line; seconds until a program's first line is there, if it asks for it late
FEWER_INSTRUCTIONS = 3.0  # a code, for up to 32 rows, in the machine code for a Hopper GPU


def codes_seconds(rows: int, n: int, k: int, instructions: float, first: float) -> float:
    plan = choose_plan(rows, n, math.ceil(k / LINE), ITEM, invariant=False, small=False)
    programs = math.ceil(rows / plan.rows) * math.ceil(n / plan.outs) * plan.splits
    lines = math.ceil(math.ceil(k / LINE) / plan.splits)
    line = plan.outs * LINE * instructions / (ISSUE_SHARE * ISSUES)
    read = codes_bytes(rows, n, k) / (COPY_SHARE * H200.bandwidth)
    added = LAUNCH if plan.splits > 1 else 0.0
    return PRODUCT_LAUNCH + added + max(read, first + lines * math.ceil(programs / SMS) * line)


def layer_of_codes(shape: str, rows: int, instructions: float = FEWER_INSTRUCTIONS, first: float = 0.0) -> float:
    """Microseconds of a layer's products, corrected by what those of Qwen3-0.6B took with one row, or with 256."""
    *sizes, _ = products_of(SHAPE).values()
    of = 1 if rows <= 32 else 256
    measured = sum(row["us"] for row in read_rows("codes-h200") if (row["weights"], row["rows"]) == ("w4a16", of))
    off = measured / (1e6 * sum(codes_seconds(of, n, k, CODE_INSTRUCTIONS, FIRST) for n, k in sizes))
    *wanted, _ = products_of(shape).values()
    return off * 1e6 * sum(codes_seconds(rows, n, k, instructions, first) for n, k in wanted)


def small_kernels(shape: str, rows: int) -> float:
    """Of a layer's two norms and SwiGLU, those that codes leave as kernels of their own: a norm where nothing is behind
    a product that is not split, and SwiGLU where gate and up are."""
    if rows > FEW_ROWS:
        return 3.0

    def is_split(n: int, k: int) -> bool:
        return choose_plan(rows, n, math.ceil(k / LINE), ITEM, invariant=False, small=False).splits > 1

    _, o, gate_up, down, _ = products_of(shape).values()
    return 2.0 + is_split(*gate_up) - is_split(*o) - is_split(*down)


def large_us(rows: int) -> dict[str, float]:
    """Steps of Qwen3-8B, in bfloat16 and with codes, before the changes and after. They leave attention, head, draw and
    copies as they are here."""
    parts: dict[str | None, float] = {}
    for kernel in kernels(H200, [164] * rows, shape=LARGE):
        parts[kernel.part] = parts.get(kernel.part, 0.0) + 1e6 * kernel.seconds
    layers, gap = shard_of(LARGE, 1).layers, gap_of_launches()
    same = sum(parts[name] for name in ("attention", "head", "sampling", "upload"))
    small = parts[SMALL] / 4 + layers * gap  # of two norms, the rotation and SwiGLU each one
    same += small + 5 * layers * gap
    bf16 = same + parts["products"]
    before, after = ((CODE_INSTRUCTIONS, FIRST), (FEWER_INSTRUCTIONS, 0.0))
    return {
        "bf16_before": bf16 + 3 * small,
        "bf16": bf16 + (0.0 if rows <= FEW else 3 * small),
        "w4a16_before": same + layers * layer_of_codes(LARGE, rows, *before) + 3 * small,
        "w4a16": same + layers * layer_of_codes(LARGE, rows, *after) + small_kernels(LARGE, rows) * small,
    }


def gain_of_codes_large(rows: int) -> float:
    """Of 4 bits over bfloat16, whole steps."""
    us = large_us(rows)
    return us["bf16"] / us["w4a16"]


def gain_with_head_in_8_bits() -> float:
    """The same of one row, with `quantize_head`: the LM head is read as codes, too, a byte each."""
    us, (n, k) = large_us(1), products_of(LARGE)["head"]
    (wide,) = (kernel.seconds for kernel in kernels(H200, [164], shape=LARGE) if kernel.part == "head")
    narrow = PRODUCT_LAUNCH + (codes_bytes(1, n, k) + n * k // 2) / (COPY_SHARE * H200.bandwidth)
    return us["bf16"] / (us["w4a16"] - 1e6 * (wide - narrow))


def run(args: argparse.Namespace) -> Report:
    lines: list[Line] = []
    for rows in BATCHES:
        us = large_us(rows)
        lines.append(({"requests": rows, **us, "host": host_us(rows), "ratio": gain_of_codes_large(rows)}, {}))
    notes = [
        "A prediction: nothing was measured. Microseconds of the device for a decode step of 1, 8, 64 and 256 "
        "sequences of 164 tokens; host: what it does in a step of Qwen3-0.6B, beside the device. ratio: bfloat16 over "
        "codes, both after the changes."
    ]
    return Report.of(args, "Decode steps of Qwen3-8B on an H200, predicted", COLUMNS, lines, notes)


def gain_of_codes_small(requests: int = 8, context: int = 192) -> float:
    step = calibrated([context] * requests)
    codes = shard_of(SHAPE, 1).layers * layer_of_codes(SHAPE, requests) + head_us(requests)
    layers, left = shard_of(SHAPE, 1).layers, small_kernels(SHAPE, requests)
    norm = step.us["norms"] / step.launches["norms"]
    with_codes = draw_by_many(turn_in_decode(merge_in_decode(step))).having(
        products=(codes, 113.0), norms=((1 + left * layers) * norm, 1 + left * layers), SwiGLU=(0.0, 0.0)
    )  # fmt: skip
    return apply(BF16.values(), step).total / with_codes.total


def gain_of_drafts(requests: int, drafted: int = 4, context: int = 192) -> float:
    """Drafts of which 80% are right, as they were measured. That engine read a sequence's keys for each draft. Now the
    ten rows of a tile are merged in two rounds, where one query's are in one; a kernel of its own turns them."""
    row = next(row for row in read_rows("speculation-qwen3-h200") if row["requests"] == requests)
    before = [calibrated([context] * rows) for rows in (requests, requests * (1 + drafted))]
    changes = [change for change in BF16.values() if change is not turn_in_decode]
    one_query, verified = (apply(changes, step) for step in before)
    attention = one_query.us["decode"] + MERGED * shard_of(SHAPE, 1).layers
    verified = verified.having(decode=(attention, one_query.launches["decode"]))
    host = 1e6 * row["gain"] * requests / row["tokens_per_s"] - before[1].total
    return float(row["gain"]) * apply(BF16.values(), before[0]).total / (verified.total + host)
