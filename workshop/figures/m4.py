"""M4: what a decode step of an H200 consists of, from docs/benchmarks/data/profile-h200.json, beside its floor."""

from __future__ import annotations

import json
from pathlib import Path

from workshop.figures.paper import ACCENT, BLUE, GREEN, LINE, MUTED, ORANGE, VIOLET, Paper

DATA = Path(__file__).parents[2] / "docs" / "benchmarks" / "data"
WEIGHTS, KV = 1.191968768e9, 114_688  # bytes of Qwen3-0.6B in bfloat16: all weights; K and V of a token
CONTEXT = 512 + 5 + 4  # tokens of each sequence in the middle of the profiled steps

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


def figures() -> dict[str, str]:
    return {"m4/step.svg": step()}
