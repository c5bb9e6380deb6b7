"""Pictures in SVG: every gap between tokens over time, the choice of a budget, and a step's time line.

    gap ms │        ●  worst         TTFT ms │● 64                 attention ▐██████▌ products ▐███▌ ...
           │●●●●●●●●  ●●●●●●●                │     ● 512
           └───────────── seconds            └─────── worst gap ms

Colours are middle tones on no background: a page shows the file as an image, so neither its text colour
nor its light or dark mode reaches in here. Gaps and times to first tokens span powers of ten, so their axes are
logarithmic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

Row = dict[str, Any]
WIDTH = 720
TEXT, BLUE, ORANGE, GREY = "#7d8590", "#3f83d6", "#d97a2b", "#9aa4b055"
PALETTE = [BLUE, ORANGE, "#3fa37a", "#b3689b", "#c7a22e", "#8a93a5"]
STYLE = f"font-family:system-ui,sans-serif;font-size:13px;fill:{TEXT}"
# Panels with axes.
LEFT, RIGHT, TOP, PANEL = 70, 20, 58.0, 150
WORDS = {
    "en": {
        "gaps": "time between two tokens of a request (ms), over time",
        "worst": "worst",
        "grey": "grey: from the long prompt's arrival to its first token",
        "step": "one decode step, predicted (µs)",
        "layer": "one of its layers",
        "sweep": "the prompt's TTFT against the others' worst gap: a point for each max_num_batched_tokens",
        "up": "TTFT (ms)",
        "across": "worst gap (ms)",
    },
    "zh": {
        "gaps": "一个请求的两个 token 之间隔了多久（ms），横轴是时间",
        "worst": "最长",
        "grey": "灰色：从长提示到达，到它的第一个 token",
        "step": "一步解码，预测值（µs）",
        "layer": "其中一层",
        "attention": "注意力",
        "products": "矩阵乘",
        "small kernels": "小内核",
        "head": "LM head",
        "sampling": "采样",
        "upload": "上传",
        "sweep": "长提示的 TTFT，以及别的请求的最长间隔：每点一个 max_num_batched_tokens",
        "up": "TTFT（ms）",
        "across": "最长间隔（ms）",
    },
}


def draw_gaps(title: str, pictures: dict[str, dict[str, Any]], lang: str = "en") -> str:
    """A panel for each engine, on the same axes; `pictures` are those of LongPrompt.picture()."""
    points = [point for picture in pictures.values() for point in picture["points"]]
    ticks = decades(min(gap for _, gap in points), max(gap for _, gap in points))
    x = Axis(0.0, max(moment for moment, _ in points), LEFT, WIDTH - RIGHT)
    parts, top = _heading(title, WORDS[lang]["gaps"], lang), TOP
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
    top = TOP + 26  # the axis's name stands above it
    bottom = top + 2 * PANEL
    x = Axis(across[0], across[-1], LEFT, WIDTH - RIGHT, log=True)
    y = Axis(up[0], up[-1], bottom, top, log=True)
    parts = _heading(title, WORDS[lang]["sweep"], lang)
    parts.append(_text(0, top - 14, WORDS[lang]["up"]))
    parts.append(_text(WIDTH - RIGHT, bottom + 40, WORDS[lang]["across"], "text-anchor:end"))
    parts += _grid(up, y)
    parts += [_text(x(tick), bottom + 18, f"{tick:,g}", "text-anchor:middle") for tick in across]
    places = [(x(gap), y(first)) for gap, first in zip(worst, ttft, strict=True)]
    line = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
    parts.append(f'<polyline points="{line}" fill="none" stroke="{GREY}"/>')
    for (px, py), row in zip(places, rows, strict=True):
        aside, anchor = (8, "start") if px < WIDTH / 2 else (-8, "end")
        label = f"{row['max_num_batched_tokens']:,}"
        parts += [_dot(px, py, 4, BLUE), _text(px + aside, py - 8, label, f"text-anchor:{anchor}")]
    return document(title, bottom + 50, parts)


def draw_time_line(title: str, rows: Sequence[Row], lang: str = "en", layers: int = 28) -> str:
    """The parts of a step one behind the other, as long as they take; and one layer, which has the first three."""
    words, parts = WORDS[lang], _heading(title, WORDS[lang]["step"], lang)
    total, layer = sum(row["us"] for row in rows), sum(row["us"] for row in rows[:3]) / layers
    scale, y, left = WIDTH / total, TOP, 0.0
    for row, colour in zip(rows, PALETTE, strict=True):
        parts.append(_segment(left, y, row["us"] * scale, colour))
        left += row["us"] * scale
    for number, (row, colour) in enumerate(zip(rows, PALETTE, strict=True)):  # the names, in two lines of three
        x, line = number % 3 * WIDTH / 3, y + 56 + number // 3 * 24
        parts.append(_segment(x, line - 11, 12, colour, 12))
        name = f"{words.get(row['part'], row['part'])} {row['us']:,.0f} µs · {row['us'] / total:.1%}"
        parts.append(_text(x + 20, line, name))
    y, left = y + 132, 0.0
    parts.append(_text(0, y - 12, f"{words['layer']}: {layer:,.1f} µs"))
    for row, colour in zip(rows[:3], PALETTE, strict=False):
        width = row["us"] / layers / layer * WIDTH
        parts.append(_segment(left, y, width, colour))
        parts.append(_text(left + width / 2, y + 54, f"{row['us'] / layers:,.1f}", "text-anchor:middle"))
        left += width
    return document(title, y + 66, parts)


def _segment(x: float, y: float, width: float, colour: str, height: float = 34) -> str:
    """A part of a bar; a gap of one pixel sets it off from the next on any background."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width - 1, 1):.1f}" height="{height:g}" rx="2" fill="{colour}"/>'


def _heading(title: str, what: str, lang: str) -> list[str]:
    """A measurement's title is English: it stays out of a picture in another language."""
    if lang != "en":
        return [_text(0, 28, what, "font-weight:600")]
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


def document(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" style="{STYLE}" role="img">\n<title>{escape(title)}</title>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, style: str = "") -> str:
    extra = f' style="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{extra}>{escape(text)}</text>'
