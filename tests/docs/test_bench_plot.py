"""A page's picture is drawn from the measurement's JSON, in the page's language."""

from __future__ import annotations

import json
from typing import Any

import pytest

from milestones.site.bench_plot import plot
from milestones.site.bench_table import DATA, command_today
from milestones.site.charts import round_numbers
from milestones.site.errors import DirectiveError

ROWS = [
    {"max_num_batched_tokens": 64, "worst_gap_ms": 10.0, "ttft_ms": 900.0},
    {"max_num_batched_tokens": 2048, "worst_gap_ms": 400.0, "ttft_ms": 500.0},
]
GAPS = {"m4": {"arrival_s": 0.1, "first_token_s": 0.3, "points": [[0.05, 2.0], [0.3, 200.0]]}}


def data(**fields: Any) -> dict[str, Any]:
    return {"name": "x", "title": "A prompt", "columns": ["milestone"], "rows": [], **fields}


def test_a_sweep_has_a_point_for_each_budget() -> None:
    html = plot(data(columns=["max_num_batched_tokens", "worst_gap_ms", "ttft_ms"], rows=ROWS))
    assert html.count("<circle") == 2
    assert ">64<" in html
    assert ">2,048<" in html


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
    html = plot(data(columns=["part", "us"], rows=rows), "zh")
    assert 'x="0.0" y="58.0" width="359.0"' in html  # half of 720, less the gap
    assert "注意力 50 µs · 50.0%" in html


def test_markdown_takes_it_as_one_block() -> None:
    html = plot(data(details={"gaps": GAPS}))
    assert "\n" not in html
    assert html.startswith('<div class="plot"><svg')


def test_what_has_no_picture_stops_the_build() -> None:
    with pytest.raises(DirectiveError, match="'x' has nothing to draw"):
        plot(data())


def test_an_old_measurement_names_the_command_that_makes_it_now() -> None:
    shown = [command_today(json.loads(path.read_text(encoding="utf-8"))["command"]) for path in DATA.glob("*.json")]
    assert any(text.startswith("python -m workshop.bench decode") for text in shown)
    assert not [text for text in shown if text.startswith("folovllm") and ("--peer" in text or " decode" in text)]
