"""Two pictures of a long prompt among decodes, in SVG: every gap between tokens over time, and the choice of a budget.

    gap ms │        ●  worst            TTFT ms │● 64
           │                                    │   ● 128
           │●●●●●●●●  ●●●●●●●                   │        ● 512
           └────────────── seconds              └────────────── worst gap ms

Gaps and times to first tokens span powers of ten, so their axes are logarithmic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from milestones.bench_bars import document
from milestones.bench_chart import BLUE, GREY, WIDTH

LEFT, RIGHT, TOP, PANEL = 70, 20, 58.0, 150
ORANGE = "#d97a2b"
WORDS = {
    "en": {
        "gaps": "time between two tokens of a request (ms), over time",
        "worst": "worst",
        "grey": "grey: from the long prompt's arrival to its first token",
        "sweep": "TTFT (ms, up) against the worst gap (ms, across), for each max_num_batched_tokens",
    },
    "zh": {
        "gaps": "一个请求的两个 token 之间隔了多久（ms），横轴是时间",
        "worst": "最长",
        "grey": "灰色：从长提示到达，到它的第一个 token",
        "sweep": "纵轴 TTFT（ms），横轴最长间隔（ms），每点一个 max_num_batched_tokens",
    },
}


class Axis:
    """Values to places: `low` at `start`, `high` at `end`; by their logarithm where asked."""

    def __init__(self, low: float, high: float, start: float, end: float, *, log: bool = False) -> None:
        self.log = log
        self.low, self.high = self._scale(low), self._scale(high)
        self.start, self.end = start, end

    def _scale(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def __call__(self, value: float) -> float:
        share = (self._scale(value) - self.low) / ((self.high - self.low) or 1.0)
        return self.start + share * (self.end - self.start)


def decades(low: float, high: float) -> list[float]:
    """The powers of ten that enclose both."""
    return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def round_numbers(low: float, high: float) -> list[float]:
    """Of 1, 2, 5, 10, 20, 50, ...: those that enclose both, and what lies between them."""
    steps = [factor * decade for decade in decades(low, high) for factor in (1, 2, 5)]
    first = max(step for step in steps if step <= low)
    last = min(step for step in steps if step >= high)
    return [step for step in steps if first <= step <= last]


def draw_gaps(title: str, pictures: dict[str, dict[str, Any]], lang: str = "en") -> str:
    """A panel for each engine, on the same axes; `pictures` is what LongPromptWorkload.details() has."""
    points = [point for picture in pictures.values() for point in picture["points"]]
    ticks = decades(min(gap for _, gap in points), max(gap for _, gap in points))
    x = Axis(0.0, max(moment for moment, _ in points), LEFT, WIDTH - RIGHT)
    parts, top = _heading(title, WORDS[lang]["gaps"]), TOP
    for name, picture in pictures.items():
        y = Axis(ticks[0], ticks[-1], top + PANEL, top, log=True)
        parts += _grid(ticks, y)
        arrival, first = x(picture["arrival_s"]), x(picture["first_token_s"])
        parts.append(
            f'<rect x="{arrival:.1f}" y="{top:.1f}" width="{max(first - arrival, 1):.1f}" height="{PANEL}" '
            f'fill="{GREY}" opacity="0.5"/>'
        )
        parts += [_dot(x(moment), y(gap), 2, BLUE) for moment, gap in picture["points"]]
        moment, worst = max(picture["points"], key=lambda point: float(point[1]))
        parts.append(_dot(x(moment), y(worst), 4, ORANGE))
        parts.append(_text(LEFT + 6, top + 14, f"{name}: {WORDS[lang]['worst']} {worst:,.1f} ms", "font-weight:600"))
        top += PANEL + 34
    for moment in _round_ticks(x.high):
        parts.append(_text(x(moment), top - 16, f"{moment:g} s", "text-anchor:middle"))
    parts.append(_text(LEFT, top + 4, WORDS[lang]["grey"]))
    return document(title, top + 14, parts)


def draw_sweep(title: str, rows: Sequence[dict[str, Any]], lang: str = "en") -> str:
    """TTFT of the long prompt against the worst gap of the others, a point for each budget."""
    worst, ttft = [row["worst_gap_ms"] for row in rows], [row["ttft_ms"] for row in rows]
    across, up = round_numbers(min(worst), max(worst)), round_numbers(min(ttft), max(ttft))
    bottom = TOP + 2 * PANEL
    x = Axis(across[0], across[-1], LEFT, WIDTH - RIGHT, log=True)
    y = Axis(up[0], up[-1], bottom, TOP, log=True)
    parts = _heading(title, WORDS[lang]["sweep"])
    parts += _grid(up, y)
    parts += [_text(x(tick), bottom + 18, f"{tick:,g}", "text-anchor:middle") for tick in across]
    places = [(x(gap), y(first)) for gap, first in zip(worst, ttft, strict=True)]
    line = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
    parts.append(f'<polyline points="{line}" fill="none" stroke="{GREY}"/>')
    for (px, py), row in zip(places, rows, strict=True):
        aside, anchor = (8, "start") if px < WIDTH / 2 else (-8, "end")
        label = f"{row['max_num_batched_tokens']:,}"
        parts += [_dot(px, py, 4, BLUE), _text(px + aside, py - 8, label, f"text-anchor:{anchor}")]
    return document(title, bottom + 28, parts)


def _heading(title: str, what: str) -> list[str]:
    return [_text(0, 18, title, "font-weight:600"), _text(0, 38, what)]


def _round_ticks(most: float) -> list[float]:
    """0 and three to seven round numbers up to `most`."""
    step = 10.0 ** math.floor(math.log10(most / 2))
    step *= next(factor for factor in (1, 2, 5, 10) if most / (step * factor) <= 7)
    return [step * number for number in range(int(most / step) + 1)]


def _grid(ticks: Sequence[float], y: Axis) -> list[str]:
    parts = []
    for tick in ticks:
        place = y(tick)
        parts.append(f'<path d="M{LEFT} {place:.1f}H{WIDTH - RIGHT}" stroke="{GREY}"/>')
        parts.append(_text(LEFT - 8, place + 4, f"{tick:,g}", "text-anchor:end"))
    return parts


def _dot(x: float, y: float, radius: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, style: str = "") -> str:
    extra = f' style="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{extra}>{escape(text)}</text>'
