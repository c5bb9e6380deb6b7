"""A page's picture is drawn from the measurement's JSON, in the page's language."""

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

ROWS = [
    {"max_num_batched_tokens": 64, "worst_gap_ms": 10.0, "ttft_ms": 900.0},
    {"max_num_batched_tokens": 2048, "worst_gap_ms": 400.0, "ttft_ms": 500.0},
]
GAPS = {"m4": {"arrival_s": 0.1, "first_token_s": 0.3, "points": [[0.05, 2.0], [0.3, 200.0]]}}


def data(**fields: Any) -> dict[str, Any]:
    return {"name": "x", "title": "A prompt", "columns": ["milestone"], "rows": [], **fields}


def test_a_sweep_has_a_point_for_each_budget() -> None:
    svg = plot(data(columns=["max_num_batched_tokens", "worst_gap_ms", "ttft_ms"], rows=ROWS))
    assert svg.count("<circle") == 2
    assert ">64<" in svg
    assert ">2,048<" in svg


def test_the_axes_of_a_sweep_end_at_the_round_numbers_around_it() -> None:
    assert round_numbers(23.4, 898.0) == [20, 50, 100, 200, 500, 1000]
    assert round_numbers(10.0, 10.0) == [10]


def test_two_engines_have_a_panel_each_and_say_their_worst_gap() -> None:
    assert "m4: worst 200.0 ms" in plot(data(details={"gaps": GAPS}))


def test_the_picture_speaks_the_page_s_language() -> None:
    assert "m4: 最长 200.0 ms" in plot(data(details={"gaps": GAPS}), "zh")


def test_a_time_line_is_as_long_as_its_parts() -> None:
    names = ["attention", "products", "small kernels", "head", "sampling", "upload"]
    rows = [{"part": name, "us": us} for name, us in zip(names, [50.0, 20.0, 10.0, 8.0, 8.0, 4.0], strict=True)]
    svg = plot(data(columns=["part", "us"], rows=rows), "zh")
    assert 'x="0.0" y="58.0" width="359.0"' in svg  # half of 720, less the gap
    assert "注意力 50 µs · 50.0%" in svg


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
