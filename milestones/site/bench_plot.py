"""A picture from the JSON of a measurement, drawn while the page is built: it cannot be older than its figures.

`::: plot NAME` takes what `python -m milestones bench ... --workload long-prompt --json` wrote. With a sweep over
budgets it draws the choice that they are, else every gap between tokens over time. What
`python -m workshop.bench timeline` wrote is drawn as the time line that it is.
"""

from __future__ import annotations

from typing import Any

from milestones.site.charts import draw_gaps, draw_sweep, draw_time_line
from milestones.site.errors import DirectiveError


def plot(data: dict[str, Any], lang: str = "en") -> str:
    """The drawing as a block of HTML without empty lines, which Markdown hands through."""
    title = str(data.get("title", data["name"]))
    if "max_num_batched_tokens" in data["columns"]:
        svg = draw_sweep(title, data["rows"], lang)
    elif gaps := data.get("details", {}).get("gaps"):
        svg = draw_gaps(title, gaps, lang)
    elif {"part", "us"} <= set(data["columns"]):
        svg = draw_time_line(title, data["rows"], lang)
    else:
        raise DirectiveError(
            f"benchmark {data['name']!r} has nothing to draw: no budgets, no gaps in its details, no parts of a step"
        )
    return f'<div class="plot">{"".join(svg.splitlines())}</div>'
