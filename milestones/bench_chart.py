"""The bench's report as a bar chart in SVG: tokens per second, and the KV cache at its fullest.

    m1 ████ 120                          m2 ███░░░░░░░  2,900 of 9,400
    m2 █████████████████ 510   4.3 x        used  reserved

Colours are middle tones on no background: a page shows the file as an image, so neither its text colour
nor its light or dark mode reaches in here.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

Row = dict[str, Any]
WIDTH, BAR_LEFT, BAR_WIDTH = 720, 60, 430
ROW, BAR = 30, 18
TEXT, BLUE, GREY = "#7d8590", "#3f83d6", "#9aa4b055"
STYLE = f"font-family:system-ui,sans-serif;font-size:13px;fill:{TEXT}"


def draw(report: dict[str, Any]) -> str:
    """An SVG document of a report whose rows are bench.make_rows'."""
    rows: list[Row] = report["rows"]
    parts, y = _panel(f"{report['title']}: output tokens/s", rows, 28, _speed_bars(rows))
    with_cache = [row for row in rows if row["kv_reserved_tokens"]]
    if with_cache:
        title = "KV cache at its fullest: tokens used, of those reserved"
        more, y = _panel(title, with_cache, y + 28, _cache_bars(with_cache))
        parts += more
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" '
        f'style="{STYLE}" role="img">\n<title>{escape(report["title"])}</title>\n' + "\n".join(parts) + "\n</svg>\n"
    )


Bars = Callable[[Row, int], list[str]]


def _panel(title: str, rows: list[Row], y: int, bars: Bars) -> tuple[list[str], int]:
    """A heading and a line per row; returns the elements and the y under them."""
    parts = [_text(0, y - 8, title, "font-weight:600")]
    for row in rows:
        parts += [_text(0, y + BAR - 4, row["milestone"]), *bars(row, y)]
        y += ROW
    return parts, y


def _speed_bars(rows: list[Row]) -> Bars:
    most = max(row["output_tokens_per_s"] for row in rows)

    def bars(row: Row, y: int) -> list[str]:
        length = BAR_WIDTH * row["output_tokens_per_s"] / most
        label = f"{row['output_tokens_per_s']:,.0f}"
        if row is not rows[0]:
            label += f"   ({row['speedup']:.1f} × {rows[0]['milestone']})"
        return [_bar(y, length, BLUE), _text(BAR_LEFT + length + 8, y + BAR - 4, label)]

    return bars


def _cache_bars(rows: list[Row]) -> Bars:
    most = max(row["kv_reserved_tokens"] for row in rows)

    def bars(row: Row, y: int) -> list[str]:
        reserved, used = row["kv_reserved_tokens"], row["kv_used_tokens"]
        label = f"{used:,} of {reserved:,} ({used / reserved:.0%})"
        end = BAR_WIDTH * reserved / most
        return [
            _bar(y, end, GREY),
            _bar(y, BAR_WIDTH * used / most, BLUE),
            _text(BAR_LEFT + end + 8, y + BAR - 4, label),
        ]

    return bars


def _bar(y: int, length: float, colour: str) -> str:
    return f'<rect x="{BAR_LEFT}" y="{y}" width="{max(length, 1):.1f}" height="{BAR}" rx="2" fill="{colour}"/>'


def _text(x: float, y: int, text: str, style: str = "") -> str:
    extra = f' style="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y}"{extra}>{escape(text)}</text>'
