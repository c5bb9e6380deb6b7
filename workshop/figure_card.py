"""A figure for both languages: an SVG card whose texts say themselves in English and carry their Chinese in `data-zh`.

The site turns one file into two pictures (`::: figure`, milestones/site/figures.py) and does the dark colours. Here are
the paper's colours and the few shapes that the figures are made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

INK, MUTED, LINE, ACCENT = "#20242c", "#4c566a", "#3b4252", "#b4532f"
GREEN, PALE_GREEN = "#7fb3a6", "#cfe5df"
ORANGE, PALE_ORANGE = "#d9a06b", "#f3dfc8"
BLUE, PALE_BLUE = "#8fa8d0", "#d6e1f2"
VIOLET, PALE_VIOLET = "#c48fb0", "#e6d9ee"
EMPTY, PAPER, EDGE = "#e6e2d6", "#fdfcf9", "#d8d4c8"
FONT = (
    "ui-sans-serif,system-ui,'Segoe UI','PingFang SC','Microsoft YaHei','Noto Sans CJK SC',Helvetica,Arial,sans-serif"
)

Text = str | tuple[str, str]  # the same in both languages, or (English, Chinese)


class Card:
    """Sizes and places in px, colours as #rrggbb."""

    def __init__(self, width: int, height: int, title: tuple[str, str]) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title data-zh={quoteattr(title[1])}>{escape(title[0])}</title>",
            f"<style>text {{ font-family: {FONT}; font-size: 14px; fill: {INK} }}</style>",
            f'<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{ACCENT}"/></marker></defs>',
            f'<rect x="1" y="1" width="{width - 2}" height="{height - 2}" rx="12" fill="{PAPER}" stroke="{EDGE}" '
            'stroke-width="2"/>',
        ]

    def text(
        self,
        x: float,
        y: float,
        text: Text,
        *,
        anchor: str = "start",
        bold: bool = False,
        color: str = INK,
        size: int = 14,
    ) -> None:
        english, chinese = (text, None) if isinstance(text, str) else text
        style = (' font-weight="bold"' if bold else "") + (f" data-zh={quoteattr(chinese)}" if chinese else "")
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" style="font-size:{size}px;fill:{color}"{style}>'
            f"{escape(english)}</text>"
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        *,
        dashed: bool = False,
        edge: str = LINE,
        rx: int = 4,
    ) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{rx}" fill="{fill}" '
            f'stroke="{edge}"{dash}/>'
        )

    def line(
        self, points: Sequence[tuple[float, float]], *, color: str = LINE, width: float = 1.2, arrow: bool = False,
        dashed: bool = False, fill: str = "none",
    ) -> None:  # fmt: skip
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        extra = (' marker-end="url(#tip)"' if arrow else "") + (' stroke-dasharray="5 4"' if dashed else "")
        self._parts.append(f'<path d="{path}" fill="{fill}" stroke="{color}" stroke-width="{width}"{extra}/>')

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(self), encoding="utf-8")

    def __str__(self) -> str:
        return "\n".join([*self._parts, "</svg>"]) + "\n"
