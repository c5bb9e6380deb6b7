"""A sheet of paper to draw on: shapes and texts in the notes' palette, collected into one SVG."""

from __future__ import annotations

from html import escape

TEXT, MUTED, LINE, ACCENT = "#20242c", "#4c566a", "#8c8877", "#b4532f"
GREEN, ORANGE, BLUE, VIOLET = "#7fb3a6", "#d9a06b", "#8fa8d0", "#c48fb0"
LIGHT_GREEN, LIGHT_ORANGE, LIGHT_BLUE, LIGHT_VIOLET = "#cfe5df", "#f3dfc8", "#d6e1f2", "#e6d9ee"
HALO = 'paint-order="stroke" stroke="#fdfcf9" stroke-width="4"'
EMPTY, CARD, BORDER = "#e6e2d6", "#fdfcf9", "#d8d4c8"

STYLE = """<style>
text { font-family: ui-sans-serif, system-ui, "Segoe UI", "PingFang SC", "Microsoft YaHei", "Noto Sans CJK SC", \
Helvetica, Arial, sans-serif; font-size: 14px; fill: #20242c; }
.code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
</style>"""


class Paper:
    """Coordinates in pixels from the upper left corner. `words` are (English, Chinese), or one text for both."""

    def __init__(self, width: int, height: int, title: tuple[str, str], style: str = "") -> None:
        self.width, self.height, self.title, self.style = width, height, title, style
        self.parts: list[str] = []

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str = "none", stroke: str = "none",
        rx: float = 3, attributes: str = "",
    ) -> None:  # fmt: skip
        edge = f' stroke="{stroke}"' if stroke != "none" else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{rx:g}" fill="{fill}"{edge}'
            f"{' ' + attributes if attributes else ''}/>"
        )

    def text(
        self, x: float, y: float, words: str | tuple[str, str], *, anchor: str = "start", size: int = 14,
        fill: str = TEXT, bold: bool = False, code: bool = False, attributes: str = "",
    ) -> None:  # fmt: skip
        english, chinese = words if isinstance(words, tuple) else (words, "")
        extra = "".join((
            f' text-anchor="{anchor}"' if anchor != "start" else "",
            f' style="font-size:{size}px"' if size != 14 else "",
            f' fill="{fill}" style="fill:{fill};font-size:{size}px"' if fill != TEXT else "",
            ' font-weight="600"' if bold else "",
            ' class="code"' if code else "",
            f' data-zh="{escape(chinese)}"' if chinese else "",
            f" {attributes}" if attributes else "",
        ))  # fmt: skip
        if fill != TEXT and size != 14:
            extra = extra.replace(f' style="font-size:{size}px"', "", 1)
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{extra}>{escape(english)}</text>')

    def line(
        self, x1: float, y1: float, x2: float, y2: float, stroke: str = LINE, width: float = 1.5, dash: str = "",
        arrow: bool = False, attributes: str = "",
    ) -> None:  # fmt: skip
        self.path(f"M{x1:g} {y1:g} L{x2:g} {y2:g}", stroke, width, dash, arrow, attributes)

    def path(
        self, d: str, stroke: str = LINE, width: float = 1.5, dash: str = "", arrow: bool = False, attributes: str = ""
    ) -> None:
        head = f' marker-end="url(#{"accent" if stroke == ACCENT else "plain"})"' if arrow else ""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        more = f" {attributes}" if attributes else ""
        self.parts.append(f'<path d="{d}" fill="none" stroke="{stroke}" stroke-width="{width:g}"{dashes}{head}{more}/>')

    def svg(self) -> str:
        heads = "".join(
            f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="{colour}"/></marker>'
            for name, colour in (("plain", LINE), ("accent", ACCENT))
        )
        english, chinese = self.title
        return "\n".join((
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img">',
            f'<title data-zh="{escape(chinese)}">{escape(english)}</title>',
            STYLE.replace("</style>", self.style + "</style>") if self.style else STYLE,
            f"<defs>{heads}</defs>",
            f'<rect x="1" y="1" width="{self.width - 2}" height="{self.height - 2}" rx="12" fill="{CARD}" '
            f'stroke="{BORDER}" stroke-width="2"/>',
            *self.parts,
            "</svg>\n",
        ))  # fmt: skip
