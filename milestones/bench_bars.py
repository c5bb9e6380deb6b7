"""Bars of one kind in SVG, each with its name before it and its figure behind it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from milestones.bench_chart import BAR, BLUE, ROW, STYLE, WIDTH

LEFT, LONGEST = 150, 400


def draw_bars(title: str, bars: Sequence[tuple[str, float, str]]) -> str:
    """`bars`: name, value, the text behind it."""
    most = max(value for _, value, _ in bars)
    parts, y = [f'<text x="0" y="20" style="font-weight:600">{escape(title)}</text>'], 32
    for name, value, text in bars:
        length = max(LONGEST * value / most, 1)
        parts += [
            f'<text x="0" y="{y + BAR - 4}">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2" fill="{BLUE}"/>',
            f'<text x="{LEFT + length + 8:.1f}" y="{y + BAR - 4}">{escape(text)}</text>',
        ]
        y += ROW
    return document(title, y, parts)


def document(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" style="{STYLE}" role="img">\n<title>{escape(title)}</title>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )
