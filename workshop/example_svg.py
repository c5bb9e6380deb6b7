"""The pen of the running example's pictures: SVG shapes, and the steps at which each is shown, by CSS animation.

The picture is whole at first, is then cleared, and is filled step by step; who prefers no motion sees it whole. English
stands in the text, Chinese in data-zh (milestones/site/figures.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

WIDTH = 860
INK, MUTED, LINE, ACCENT, EMPTY = "#20242c", "#4c566a", "#3b4252", "#b4532f", "#e6e2d6"
SECONDS, HOLD = 1.1, 2.6  # a step; the whole picture before and after


class Picture:
    """Collects shapes, and for each the steps at which it is shown. The loop: whole, cleared, step by step, whole."""

    def __init__(self, frames: int, width: int = WIDTH) -> None:
        self.frames, self.width = frames, width
        self.seconds = HOLD + frames * SECONDS + HOLD
        self.body: list[str] = []
        self.rules: dict[str, str] = {}

    def add(self, *shapes: str) -> None:
        """Shown always."""
        self.body += shapes

    def from_step(self, step: int, *shapes: str) -> None:
        """Shown from `step` (1-based) on, and while the picture is whole."""
        self._group(f"from{step}", {0.0: 1, HOLD: 0.06, self._begin(step): 1}, shapes)

    def during(self, first: int, last: int, still: bool, *shapes: str) -> None:
        """Shown from step `first` to the end of step `last`; with `still` also while the picture is whole."""
        whole, over = int(still), self._begin(self.frames + 1)
        times = {0.0: whole, HOLD: 0, self._begin(first): 1, self._begin(last + 1): 0, over: whole}
        self._group(f"in{first}-{last}{'w' if still else ''}", times, shapes)

    def _begin(self, step: int) -> float:
        return HOLD + (step - 1) * SECONDS

    def _group(self, name: str, times: Mapping[float, float], shapes: tuple[str, ...]) -> None:
        """`times`: second of the loop -> opacity from there on, the same at its end as at its beginning."""
        frames = "".join(f"{100 * t / self.seconds:.2f}%{{opacity:{o:g}}}" for t, o in sorted(times.items()))
        self.rules[name] = (
            f".{name}{{opacity:{times[0.0]:g};animation:{name} {self.seconds:.1f}s step-end infinite}}"
            f"@keyframes {name}{{{frames}100%{{opacity:{times[0.0]:g}}}}}"
        )
        self.body.append(f'<g class="{name}">{"".join(shapes)}</g>')

    def svg(self, title: tuple[str, str], height: int) -> str:
        """The whole file; `title` is what a screen reader reads."""
        css = "\n".join(
            [
                "text{font-family:ui-sans-serif,system-ui,'Segoe UI','PingFang SC','Microsoft YaHei',"
                f"'Noto Sans CJK SC',Helvetica,Arial,sans-serif;font-size:13px;fill:{INK}}}",
                ".halo{paint-order:stroke;stroke:#fdfcf9;stroke-width:4px}",
                ".code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}",
                *self.rules.values(),
                "@media (prefers-reduced-motion:reduce){g{animation:none!important}}",
            ]
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {height}" role="img">\n'
            f'<title data-zh="{escape(title[1])}">{escape(title[0])}</title>\n<style>\n{css}\n</style>\n'
            f'<rect x="1" y="1" width="{self.width - 2}" height="{height - 2}" rx="12" fill="#fdfcf9" stroke="#d8d4c8" '
            'stroke-width="2"/>\n' + "\n".join(self.body) + "\n</svg>\n"
        )


def text(x: float, y: float, en: str, zh: str | None = None, **style: str) -> str:
    said = _attributes(style)
    other = f' data-zh="{escape(zh)}"' if zh is not None else ""
    return f'<text x="{x:g}" y="{y:g}"{said}{other}>{escape(en)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, stroke: str = LINE, **style: str) -> str:
    size = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"'
    return f'<rect {size} fill="{fill}" stroke="{stroke}"{_attributes(style)}/>'


def line(x1: float, x2: float, y: float, stroke: str, **style: str) -> str:
    return f'<line x1="{x1:g}" y1="{y:g}" x2="{x2:g}" y2="{y:g}" stroke="{stroke}"{_attributes(style)}/>'


def _attributes(style: dict[str, str]) -> str:
    return "".join(f' {key.rstrip("_").replace("_", "-")}="{value}"' for key, value in style.items())
