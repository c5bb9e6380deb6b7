"""A page's picture is drawn from the measurement's JSON; `make docs` compares each that is stored with a new one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from milestones.site.bench_plot import PLOTS, plot
from milestones.site.bench_table import DATA, command_today
from milestones.site.charts import round_numbers
from milestones.site.errors import DirectiveError
from milestones.site.source import ROOT


def data(**fields: Any) -> dict[str, Any]:
    return {"name": "x", "title": "A prompt", "columns": ["milestone"], "rows": [], **fields}


def test_the_axes_of_a_sweep_end_at_the_round_numbers_around_it() -> None:
    assert round_numbers(23.4, 898.0) == [20, 50, 100, 200, 500, 1000]
    assert round_numbers(10.0, 10.0) == [10]


def test_the_pages_name_the_plots_that_are_drawn() -> None:
    named = {
        m
        for path in (ROOT / "docs/en").rglob("*.md")
        for m in re.findall(r"/figures/(\S*plot-\S+)\.svg\)", path.read_text())
    }
    assert named == set(PLOTS)


def test_what_has_no_picture_is_an_error() -> None:
    with pytest.raises(DirectiveError, match="'x' has nothing to draw"):
        plot(data())


def test_an_old_measurement_names_the_command_that_makes_it_now() -> None:
    shown = [command_today(json.loads(path.read_text(encoding="utf-8"))["command"]) for path in DATA.glob("*.json")]
    assert any(text.startswith("python -m workshop.bench decode") for text in shown)
    assert not [text for text in shown if text.startswith("folovllm") and ("--peer" in text or " decode" in text)]
