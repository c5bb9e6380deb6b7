"""Pictures from the JSON of measurements: docs/figures/m5/plot-NAME.svg and its Chinese, written by `make pages`.

A plot has what `python -m milestones bench ... --workload long-prompt --json` wrote. With a sweep over
budgets it draws the choice that they are, else every gap between tokens over time. What
`python -m workshop.bench timeline` wrote is drawn as the time line that it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from milestones.site import source
from milestones.site.bench_table import load
from milestones.site.charts import draw_gaps, draw_sweep, draw_time_line
from milestones.site.errors import DirectiveError
from milestones.site.figures import PLOT, file_in

PLOTS = ("m4/plot-decode-time-line-h200", "m5/plot-m5-against-m4-long-prompt", "m5/plot-m5-budget-sweep")
"""Pictures of measurements: the milestone whose pages show it, and after `plot-` the measurement."""


def files() -> Iterator[tuple[Path, str]]:
    """Each picture's file, and what belongs into it."""
    for name in PLOTS:
        for lang in ("en", "zh"):
            yield source.ROOT / file_in(lang, name), plot(load(name.partition(PLOT)[2]), lang)


def plot(data: dict[str, Any], lang: str = "en") -> str:
    """The picture as an SVG file."""
    title = str(data.get("title", data["name"]))
    if "max_num_batched_tokens" in data["columns"]:
        return draw_sweep(title, data["rows"], lang)
    if gaps := data.get("details", {}).get("gaps"):
        return draw_gaps(title, gaps, lang)
    if {"part", "us"} <= set(data["columns"]):
        return draw_time_line(title, data["rows"], lang)
    raise DirectiveError(
        f"benchmark {data['name']!r} has nothing to draw: no budgets, no gaps in its details, no parts of a step"
    )
