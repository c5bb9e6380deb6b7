"""The pictures of the benchmarks page: ratios as dots around 1, drawn from measurements in both languages at once.

                            slower            as fast            faster
    vllm        bfloat16, 8    ·                 │      ●  ○                    ● decode   ○ prefill
    openvino    float32, 8     ·          ├──●───┤                              an interval where there are rounds

A drawing of docs/figures: light paper, labels in English with their Chinese beside them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from milestones.bench.spread import LEVEL, in_turn
from workshop.bench.compare import samples_of

WIDTH, LEFT, RIGHT, TOP, ROW = 860, 300, 40, 96, 34
BLUE, ORANGE, INK, GREY = "#2f6fc4", "#c4621a", "#2b2f36", "#8b8f98"
TICKS = (0.25, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20)


@dataclass(frozen=True)
class Dot:
    """A ratio, and its interval where there are enough rounds for one."""

    ratio: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """A row of the picture: its name in both languages, and up to two dots."""

    name: str
    zh: str
    first: Dot
    second: Dot | None = None


def peer_lines(reports: Sequence[dict[str, Any]]) -> list[Line]:
    """For each peer of each report: our rate over its, in decode and in prefill."""
    lines = []
    for report in reports:
        ours = report["rows"][0]
        for number, row in enumerate(report["rows"][1:], 1):
            if row.get("batch") == 1 and row["requests"] > 1:
                continue  # a peer that takes one prompt after the other is no measure of eight at once
            dtype, requests = row["dtype"], row["requests"]
            plural = "" if requests == 1 else "s"
            lines.append(
                Line(
                    f"{row['engine']}, {dtype}, {requests} request{plural}",
                    f"{row['engine']}，{dtype}，{requests} 个请求",
                    _dot(report, number, "decode_tokens_per_s", ours, row),
                    _dot(report, number, "prefill_tokens_per_s", ours, row),
                )
            )
    return lines


def _dot(report: dict[str, Any], number: int, column: str, ours: dict[str, Any], row: dict[str, Any]) -> Dot:
    rounds = samples_of(report, number, column), samples_of(report, 0, column)
    if all(rounds):
        found = in_turn(*rounds)  # ours over the peer's, round by round
        return Dot(found.ratio, found.low, found.high) if found.level >= LEVEL else Dot(found.ratio)
    return Dot(ours[column] / row[column])


def ablation_lines(report: dict[str, Any]) -> list[Line]:
    """Seconds without a feature over seconds with it, for those that this machine has."""
    lines = []
    for row in report["rows"]:
        if row["ratio"] is not None:
            sure = row["sure"] >= LEVEL
            dot = Dot(row["ratio"], row["low"] if sure else None, row["high"] if sure else None)
            lines.append(Line(row["feature"], FEATURES_ZH.get(row["feature"], row["feature"]), dot))
    return lines


FEATURES_ZH = {
    "CUDA graphs": "CUDA 图",
    "running ahead": "抢跑",
    "chunked prefill": "分块预填充",
    "prefix caching": "前缀缓存",
    "fast sampling": "快速采样",
    "packed weights": "权重打包",
    "all layers in one call": "所有层一次调用",
    "fused layers": "层融合",
    "C++ kernels": "C++ 内核",
    "more than one thread": "多于一个线程",
}


def draw(title: str, zh: str, lines: Sequence[Line], legend: Sequence[tuple[str, str]], axis: tuple[str, str]) -> str:
    """An SVG for docs/figures. `legend`: what the first and the second dot are; `axis`: what is right of 1."""
    dots = [dot for line in lines for dot in (line.first, line.second) if dot is not None]
    ends = [end for dot in dots for end in (dot.low or dot.ratio, dot.high or dot.ratio)]
    low = max((tick for tick in TICKS if tick <= min([*ends, 0.7])), default=TICKS[0])
    high = min((tick for tick in TICKS if tick >= max([*ends, 1.5])), default=TICKS[-1])
    height = TOP + ROW * len(lines) + 52

    def x(ratio: float) -> float:
        share = (math.log(min(max(ratio, low), high)) - math.log(low)) / (math.log(high) - math.log(low))
        return LEFT + share * (WIDTH - RIGHT - LEFT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui,sans-serif" '
        f'font-size="14" fill="{INK}">',
        f'<title data-zh="{escape(zh)}">{escape(title)}</title>',
        f'<rect x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="12" fill="#fdfcf9" stroke="#d8d4c8" '
        'stroke-width="2"/>',
        _label(24, 34, title, zh, "font-weight:600"),
    ]
    at = 24.0
    for (name, name_zh), colour in zip(legend, (BLUE, ORANGE), strict=False):
        parts += [_circle(at + 6, 57, colour, hollow=colour == ORANGE), _label(at + 18, 62, name, name_zh)]
        at += 40 + 8.5 * len(name)
    bottom = TOP + ROW * len(lines)
    for tick in (tick for tick in TICKS if low <= tick <= high):
        heavy = f'stroke="{INK}" stroke-width="1.5"' if tick == 1 else 'stroke="#d8d4c8"'
        parts.append(f'<path d="M{x(tick):.1f} {TOP - 14}V{bottom}" {heavy}/>')
        parts.append(_label(x(tick), bottom + 20, f"{tick:g}×", f"{tick:g}×", f"text-anchor:middle;fill:{GREY}"))
    parts.append(_label(WIDTH - RIGHT, bottom + 40, *axis, style=f"text-anchor:end;fill:{GREY}"))
    for number, line in enumerate(lines):
        y = TOP + ROW * number + 8
        parts.append(_label(24, y + 5, line.name, line.zh))
        for dot, colour, shift in ((line.first, BLUE, -5), (line.second, ORANGE, 5)):
            if dot is None:
                continue
            place = y + (shift if line.second else 0)
            if dot.low is not None and dot.high is not None:
                parts.append(
                    f'<path d="M{x(dot.low):.1f} {place}H{x(dot.high):.1f}" stroke="{colour}" stroke-width="2" '
                    'opacity="0.55"/>'
                )
            parts.append(_circle(x(dot.ratio), place, colour, hollow=colour == ORANGE))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _circle(x: float, y: float, colour: str, *, hollow: bool) -> str:
    """Told apart by more than their colour."""
    fill = "#fdfcf9" if hollow else colour
    return f'<circle cx="{x:.1f}" cy="{y:g}" r="5" fill="{fill}" stroke="{colour}" stroke-width="2"/>'


def _label(x: float, y: float, text: str, zh: str, style: str = "") -> str:
    look = f' style="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:g}" data-zh="{escape(zh)}"{look}>{escape(text)}</text>'
