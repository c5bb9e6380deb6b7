"""The picture of the notes' page "See it", out of a trace: python -m workshop.see_it

It runs examples/trace.py, whose lengths are given, so that the picture is the same on every machine; and writes
docs/en/see-it.svg and docs/zh/see-it.svg.
"""

from __future__ import annotations

import runpy
import sys
import tempfile
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from folovllm.tracing.lanes import Lane, lanes_of
from folovllm.tracing.reader import Trace, blocks_of, rows_of

ROOT = Path(__file__).parents[1]
WIDTH, LEFT, LANE, MAP_STEP = 860, 92, 30, 13

COLOURS = {
    "waiting": "#b5bac1", "prefill": "#e69f00", "decode": "#0072b2", "idle": "#dfe6ee", "preempted": "#d55e00",
    "found": "#009e73", "shared": "#56b4e9", "used": "#737f8c", "free": "#eceff2",
}  # fmt: skip
INK, DIM, LINE = "#20242c", "#4c566a", "#d8d4c8"

WORDS = {
    "en": {
        "label": "Four sequences over 29 steps, and the owners of the 12 blocks at step 13",
        "lanes": "what each sequence computes, step by step",
        "budget": "tokens",
        "blocks": f"owners of the blocks while step {MAP_STEP} computes",
        "prefill": "prefill", "decode": "decode", "preempted": "preempted",
        "found": "found in the cache, or can be found", "used": "in use", "shared": "shared",
    },
    "zh": {
        "label": "四条序列共 29 步，以及第 13 步时 12 个块属于哪条序列",
        "lanes": "每一步各条序列算什么",
        "budget": "token 数",
        "blocks": f"第 {MAP_STEP} 步计算时，各块属于哪条序列",
        "prefill": "预填充", "decode": "解码", "preempted": "被抢占",
        "found": "命中缓存，或可以再次找到", "used": "使用中", "shared": "共享",
    },
}  # fmt: skip


@dataclass
class Picture:
    """SVG as a list of its elements."""

    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        size = f'width="{width:.1f}" height="{height:.1f}"'
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{fill}"/>')

    def text(self, x: float, y: float, text: str, *, size: float = 13, fill: str = INK, anchor: str = "start") -> None:
        style = f'font-size="{size}" text-anchor="{anchor}" fill="{fill}"'
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>')

    def line(self, x0: float, y0: float, x1: float, y1: float, colour: str, width: float = 1) -> None:
        ends = f'x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"'
        self.parts.append(f'<line {ends} stroke="{colour}" stroke-width="{width}"/>')

    def svg(self, height: int, label: str) -> str:
        font = "ui-sans-serif,system-ui,'Segoe UI','PingFang SC','Microsoft YaHei','Noto Sans CJK SC'"
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'role="img" aria-label="{escape(label)}">',
            f'<rect x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="12" fill="#fdfcf9" stroke="{LINE}" '
            'stroke-width="2"/>',
            f'<g font-family="{font}">', *self.parts, "</g></svg>", "",
        ])  # fmt: skip


def trace_of_example() -> Trace:
    """A run of the example."""
    path = ROOT / "examples" / "trace.py"
    sys.path.insert(0, str(path.parent))
    try:
        with tempfile.TemporaryDirectory() as folder:
            trace: Trace = runpy.run_path(str(path))["run"](Path(folder) / "run.gz")
            return trace
    finally:
        sys.path.remove(str(path.parent))


def draw(trace: Trace, language: str) -> str:
    words, picture = WORDS[language], Picture()
    unit = (WIDTH - LEFT - 24) / len(trace.steps)
    lanes = sorted(lanes_of(trace), key=lambda lane: lane.id)
    y = 34.0
    picture.text(24, y, words["lanes"], size=14)
    for step in (1, *range(5, len(trace.steps) + 1, 5)):
        picture.text(LEFT + (step - 0.5) * unit, y + 24, str(step), size=13, fill=DIM, anchor="middle")
    top = y + 32
    found = {(seq_id, place) for place, step in enumerate(trace.steps) for seq_id, num in step.admitted if num}
    for place, lane in enumerate(lanes):
        _draw_lane(picture, lane, top + place * LANE, unit, found)
    y = top + len(lanes) * LANE + 14
    _draw_budget(picture, trace, y, unit, words["budget"])
    picture.line(LEFT + (MAP_STEP - 0.5) * unit, top - 4, LEFT + (MAP_STEP - 0.5) * unit, y + 46, INK)
    y += 80
    picture.text(24, y, words["blocks"], size=14)
    _draw_blocks(picture, trace, y + 12)
    y += 88
    x = 24.0
    for kind in ("prefill", "decode", "preempted", "used", "shared", "found"):
        picture.box(x, y - 10, 18, 11, COLOURS[kind])
        picture.text(x + 24, y, words[kind])
        x += 44 + 7.6 * sum(2 if ord(c) > 255 else 1 for c in words[kind])
    return picture.svg(round(y) + 22, words["label"])


def _draw_lane(picture: Picture, lane: Lane, y: float, unit: float, found: set[tuple[str, int]]) -> None:
    picture.text(24, y + 15, lane.id)
    for part in lane.segments:
        x, width = LEFT + part.first * unit, (part.last + 1 - part.first) * unit - 1
        if part.kind == "waiting":
            picture.box(x, y + 9, width, 3, COLOURS[part.kind])
            continue
        picture.box(x, y + 2, width, 18, COLOURS[part.kind])
        if (lane.id, part.first) in found:
            picture.box(x, y + 14, width, 6, COLOURS["found"])
        if part.kind == "prefill" and part.num_tokens:
            down = 12 if (lane.id, part.first) in found else 15
            picture.text(x + width / 2, y + down, str(part.num_tokens), anchor="middle")


def _draw_budget(picture: Picture, trace: Trace, y: float, unit: float, label: str) -> None:
    """Prefill below, decode above, against the budget."""
    budget, height = trace.header.max_num_batched_tokens, 46
    picture.text(24, y + 12, label, fill=DIM)
    picture.text(24, y + 28, f"≤ {budget}", fill=DIM)
    picture.line(LEFT, y, LEFT + unit * len(trace.steps), y, LINE)
    for place, step in enumerate(trace.steps):
        bottom = y + height
        for kind in ("prefill", "decode"):
            tokens = sum(row.num_tokens for row in rows_of(step) if row.kind == kind)
            size = height * tokens / budget
            picture.box(LEFT + place * unit, bottom - size, unit - 1, size, COLOURS[kind])
            bottom -= size
    picture.line(LEFT, y + height, LEFT + unit * len(trace.steps), y + height, DIM)


def _draw_blocks(picture: Picture, trace: Trace, y: float) -> None:
    _, tables, findable = next(each for each in blocks_of(trace) if each[0].step == MAP_STEP)
    size = 50
    for block in range(1, trace.header.num_blocks + 1):
        owners = [seq_id for seq_id, table in tables.items() if block in table]
        kind = "shared" if len(owners) > 1 else "used" if owners else "found" if block in findable else "free"
        x = LEFT + (block - 1) * (size + 4)
        picture.box(x, y, size, size, COLOURS[kind])
        if owners and block in findable:
            picture.box(x, y + size - 5, size, 5, COLOURS["found"])
        text = f"×{len(owners)}" if len(owners) > 1 else owners[0] if owners else ""
        picture.text(x + size / 2, y + 36, text, fill=INK if kind == "shared" else "#ffffff", anchor="middle")
        picture.text(x + 4, y + 14, str(block), fill=INK if kind in ("shared", "free") else "#ffffff")


def main() -> None:
    trace = trace_of_example()
    for language in WORDS:
        path = ROOT / "docs" / language / "see-it.svg"
        path.write_text(draw(trace, language), encoding="utf-8")
        print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
