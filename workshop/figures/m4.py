"""M4: what a decode step of an H200 consists of, from docs/benchmarks/data/profile-h200.json, beside its floor; and the
H200 itself, with three programs of the decode kernel on one multiprocessor."""

from __future__ import annotations

import json
from pathlib import Path

from workshop.figures.paper import (
    ACCENT,
    BLUE,
    CARD,
    EMPTY,
    GREEN,
    LIGHT_BLUE,
    LIGHT_ORANGE,
    LIGHT_VIOLET,
    LINE,
    MUTED,
    ORANGE,
    VIOLET,
    Paper,
)  # fmt: skip

DATA = Path(__file__).parents[2] / "docs" / "benchmarks" / "data"
WEIGHTS, KV = 1.191968768e9, 114_688  # bytes of Qwen3-0.6B in bfloat16: all weights; K and V of a token
CONTEXT = 512 + 5 + 4  # tokens of each sequence in the middle of the profiled steps
QUARTERS, PLACES = 4, 16  # of a multiprocessor; for warps in each
SHARED, PROGRAM_SHARED = 227 * 1024, 72_192 + 1024  # bytes: of a multiprocessor; of a program, 1 KB is the system's
PROGRAMS = (GREEN, BLUE, ORANGE)

PARTS = (
    (("products", "矩阵乘法"), ORANGE, ("products and head",)),
    (("attention", "注意力"), BLUE, ("decode", "merge of splits")),
    (("small kernels", "小内核"), GREEN, ("norms", "rotation", "SwiGLU", "copies and others")),
    (("draw", "采样"), VIOLET, ("draw",)),
)


def parts() -> dict[int, list[float]]:
    """Microseconds of each of PARTS in a step, by the number of sequences."""
    rows = json.loads((DATA / "profile-h200.json").read_text("utf-8"))["rows"]
    batches = sorted({row["batch"] for row in rows})
    took = {(row["batch"], row["kernel"]): row["us"] for row in rows}
    return {batch: [sum(took.get((batch, name), 0.0) for name in names) for _, _, names in PARTS] for batch in batches}


def floor(batch: int) -> float:
    """Microseconds in which the step's weights, keys and values are read, at the measured bandwidth."""
    notes = json.loads((DATA / "decode-h200.json").read_text("utf-8"))["notes"]
    bandwidth = float(notes[0].partition("copying ")[2].partition(" GB/s")[0].replace(",", "")) * 1e9
    return 1e6 * (WEIGHTS + batch * CONTEXT * KV) / bandwidth


def step() -> str:
    paper = Paper(860, 314, ("What the kernels of a decode step take at 1, 8, 64 and 256 sequences, and the floor",
                             "1、8、64、256 条序列时一步解码里各类内核的时间，和下限"))  # fmt: skip
    left, scale = 130, 620 / 5300  # pixels for a microsecond
    paper.text(24, 34, ("a decode step of Qwen3-0.6B on an H200, 512 tokens of each sequence",
                        "Qwen3-0.6B 在 H200 上解码一步，每条序列 512 个 token"), bold=True)  # fmt: skip
    for i, (batch, took) in enumerate(parts().items()):
        y, x = 58 + 48 * i, float(left)
        paper.text(left - 12, y + 21, (f"{batch} sequences" if batch > 1 else "1 sequence", f"{batch} 条"),
                   anchor="end", size=13)  # fmt: skip
        for (_, fill, _), micros in zip(PARTS, took, strict=True):
            paper.rect(x, y, micros * scale, 32, fill, LINE, rx=0)
            if micros * scale > 40:
                paper.text(x + micros * scale / 2, y + 21, f"{micros / 1e3:.2f}", anchor="middle", size=13)
            x += micros * scale
        paper.text(x + 8, y + 21, f"{sum(took) / 1e3:.2f} ms", size=13)
        end = left + floor(batch) * scale
        for top in (y - 7, y + 31):
            paper.line(end, top, end, top + 8, ACCENT, 3)
    x = float(left)
    for words, fill, _ in PARTS:
        paper.rect(x, 258, 16, 14, fill, LINE)
        paper.text(x + 22, 270, words, size=13, fill=MUTED)
        x += 130
    paper.line(x + 8, 256, x + 8, 274, ACCENT, 2.5)
    paper.text(x + 20, 270, ("floor: reading all bytes", "下限：读完所有字节"), size=13, fill=MUTED)
    paper.text(left, 296, ("Under torch’s profiler. A whole step takes about as long, so a graph leaves hardly a gap.",
                           "由 torch 的性能分析器测得。整步的时间差不多也是这么长，可见 CUDA 图几乎不留空隙。"),
               size=13, fill=MUTED)  # fmt: skip
    return paper.svg()


def hardware() -> str:
    paper = Paper(860, 424, (
        "An H200: 132 multiprocessors over one L2 cache and the HBM; and one multiprocessor, where three programs have "
        "12 of 64 places for warps and most of the shared memory",
        "H200：132 个多处理器共用一个 L2 缓存和 HBM；其中一个多处理器上，三个程序占了 64 个 warp 位置里的 12 个，"
        "和大部分共享内存"))  # fmt: skip
    _chip(paper, left=24, width=213)
    paper.path("M238 62 L346 40", LINE, 1.2, "4 3")
    paper.path("M238 78 L346 380", LINE, 1.2, "4 3")
    _multiprocessor(paper, left=346, width=490)
    paper.text(24, 408, ("Green, blue, orange: three programs of the decode kernel, each of four warps.",
                         "绿、蓝、橙：解码内核的三个程序，每个四个 warp。"), size=13, fill=MUTED)  # fmt: skip
    return paper.svg()


def _chip(paper: Paper, left: float, width: float) -> None:
    paper.text(left, 34, ("the chip: 132 multiprocessors", "整块芯片：132 个多处理器"), bold=True)
    for i in range(132):
        x, y = left + 18 * (i % 12), 62 + 18 * (i // 12)
        paper.rect(x, y, 15, 15, LIGHT_ORANGE if i == 11 else EMPTY, ACCENT if i == 11 else LINE, rx=2)
    for y, fill, words in (
        (282, LIGHT_VIOLET, ("L2 cache, 50 MB", "L2 缓存，50 MB")),
        (344, LIGHT_ORANGE, ("HBM, 141 GB", "HBM，141 GB")),
    ):
        paper.rect(left, y, width, 36, fill, LINE)
        paper.text(left + width / 2, y + 23, words, anchor="middle")
    paper.line(left + width / 2, 282, left + width / 2, 262, ACCENT, 2, arrow=True)
    paper.line(left + width / 2, 344, left + width / 2, 320, ACCENT, 2, arrow=True)
    paper.text(left + width / 2 + 12, 337, "4.3 TB/s", size=13, fill=ACCENT)


def _multiprocessor(paper: Paper, left: float, width: float) -> None:
    paper.rect(left, 40, width, 340, CARD, ACCENT, rx=6)
    paper.text(left + 16, 64, ("one multiprocessor: four quarters", "一个多处理器：四个分区"), bold=True)
    inner = (width - 32 - 3 * 6) / QUARTERS
    for quarter in range(QUARTERS):
        x = left + 16 + quarter * (inner + 6)
        paper.rect(x, 78, inner, 196, EMPTY, LINE)
        middle = x + inner / 2
        paper.text(middle, 97, (f"{PLACES} warps", f"{PLACES} 个 warp"), anchor="middle", size=13, fill=MUTED)
        for place in range(PLACES):
            fill = PROGRAMS[place] if place < len(PROGRAMS) else CARD
            paper.rect(middle - 43 + 22 * (place % 4), 106 + 18 * (place // 4), 19, 15, fill, LINE, rx=2)
        for y, fill, words in (
            (184, LIGHT_BLUE, ("registers 64 KB", "寄存器 64 KB")),
            (214, CARD, ("32 lanes", "32 条通道")),
            (244, LIGHT_VIOLET, ("Tensor Core", "Tensor Core")),
        ):
            paper.rect(x + 4, y, inner - 8, 25, fill, LINE)
            paper.text(middle, y + 17, words, anchor="middle", size=13)
    paper.text(left + 16, 300, ("shared memory, 227 KB", "共享内存，227 KB"), size=13, fill=MUTED)
    scale = (width - 32) / SHARED
    paper.rect(left + 16, 308, width - 32, 34, CARD, LINE)
    for i, fill in enumerate(PROGRAMS):
        x, size = left + 16 + i * PROGRAM_SHARED * scale, PROGRAM_SHARED * scale
        paper.rect(x, 308, size, 34, fill, LINE)
        paper.text(x + size / 2, 330, f"{PROGRAM_SHARED / 1024:.1f} KB", anchor="middle", size=13)
    paper.text(left + 16, 366, ("12 of 64 places for warps are taken: 19% occupancy",
                                "64 个 warp 位置占了 12 个：占用率 19%"), size=13, fill=ACCENT)  # fmt: skip


def figures() -> dict[str, str]:
    return {"m4/hardware.svg": hardware(), "m4/step.svg": step()}
