"""`python -m milestones bench --workload …`: its options, its pictures, and each workload once for real."""

from __future__ import annotations

import argparse
import json
import math
import xml.etree.ElementTree as ET
from functools import partial
from pathlib import Path

import pytest

from milestones import cli
from milestones.bench import options, workloads
from milestones.bench.charts import Axis, decades, draw_bars, draw_gaps, draw_sweep
from tests.milestones.svg import SVG

# Pictures.


def test_bars_are_as_long_as_their_values() -> None:
    svg = draw_bars("A & B", [("one", 10.0, "10"), ("two", 40.0, "40")])
    one, two = (float(bar.attrib["width"]) for bar in ET.fromstring(svg).iter(f"{SVG}rect"))
    assert two == pytest.approx(4 * one)


def test_an_axis_places_by_value_or_by_its_logarithm() -> None:
    assert Axis(0, 10, 100, 200)(5) == 150
    assert Axis(1, 100, 300, 100, log=True)(10) == 200
    assert decades(3, 450) == [1, 10, 100, 1000]
    assert decades(10, 10) == [10]


def test_gaps_are_drawn_on_one_time_axis() -> None:
    picture = {"arrival_s": 1.0, "first_token_s": 3.0, "points": [[1.0, 10.0], [3.0, 100.0]]}
    other = {"arrival_s": 1.0, "first_token_s": 1.5, "points": [[1.5, 20.0]]}
    document = ET.fromstring(draw_gaps("Gaps", {"m4": picture, "m5": other}))
    m4, m5 = (float(shade.attrib["width"]) for shade in document.iter(f"{SVG}rect"))
    assert m4 == pytest.approx(4 * m5, rel=0.01)
    dots = [float(dot.attrib["r"]) for dot in document.iter(f"{SVG}circle")]
    assert sorted(dots) == [2, 2, 2, 4, 4]  # every gap, and the worst of each


def test_a_sweep_is_a_line_through_its_budgets() -> None:
    rows = [{"worst_gap_ms": gap, "ttft_ms": first, "max_num_batched_tokens": budget}
            for gap, first, budget in ((10, 900, 64), (100, 300, 512))]  # fmt: skip
    document = ET.fromstring(draw_sweep("Sweep", rows))
    (line,) = document.iter(f"{SVG}polyline")
    assert len(line.attrib["points"].split()) == 2
    assert len(list(document.iter(f"{SVG}circle"))) == 2


# The command.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["m1", "--workload", "decode", "--requests", "3"], "requests must not be given with --workload decode"),
        (["m1", "--batch", "3"], "batch must not be given with --workload requests: it is for decode"),
        (["m1", "--new-tokens", "3"], "it is for long-prompt and shared-prefix"),
        (["m1", "--workload", "decode", "--batch", "4", "0"], "batch must be at least 1, got 0"),
        (["m1", "--workload", "shared-prefix", "--prompts", "1"], "prompts must be at least 2, got 1"),
        (["m1", "m2", "--workload", "long-prompt", "--sweep-budget", "64"], "sweep-budget must be given with one"),
        (["m1", "--workload", "long-prompt", "--sweep-budget", "64", "64"], "must name each budget once"),
        (["m1", "--workload", "long-prompt", "--sweep-threshold", "0", "0"], "must name each threshold once"),
        (["m1", "--workload", "long-prompt", "--sweep-threshold", "0", "--sweep-budget", "9"], "not be given together"),
        (["m1", "--json", "."], "json must be a file, got ., which is a folder"),
        (["m1", "--workload", "long-prompt", "--sweep-budget", "64", "--set", "m1.max_num_batched_tokens=9"],
         "--set must leave max_num_batched_tokens alone"),
        (["m1", "--workload", "decode", "--shape", "gpt-5"], "shape must be one of qwen3-0.6b"),
        (["m0", "--workload", "decode"], "m0 has no engine to measure"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_what_is_not_given_has_the_workloads_default() -> None:
    parser = argparse.ArgumentParser()
    options.add_workload_options(parser)
    args = parser.parse_args(["--workload", "long-prompt", "--decodes", "5"])
    options.settle(args)
    assert (args.decodes, args.long_len, args.new_tokens, args.dtype) == (5, 2000, 128, "float32")
    assert args.batch is None


def test_every_workload_has_a_title() -> None:
    assert set(workloads.TITLES) == set(options.WORKLOADS) - {"requests"}


exhaustive = partial(pytest.param, marks=pytest.mark.exhaustive)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "columns"),
    [
        # Each takes ten seconds, nearly all of it for processes that load PyTorch and Transformers.
        exhaustive(["m2", "m3", "--workload", "decode", "--batch", "2", "--context", "8", "--steps", "2"], "step_ms"),
        exhaustive(["m2", "m3", "--workload", "long-prompt", "--decodes", "2", "--long-len", "64", "--new-tokens", "8"],
                   "worst_gap_ms"),
        exhaustive(["m3", "--workload", "long-prompt", "--decodes", "2", "--long-len", "64", "--new-tokens", "8",
                    "--sweep-budget", "256", "512"], "max_num_batched_tokens"),
        exhaustive(["m2", "m3", "--workload", "shared-prefix", "--prefix", "32", "--suffix", "4", "--prompts", "2"],
                   "ttft_ms"),
    ],
)  # fmt: skip
def test_real_milestones_answer_each_workload(words: list[str], columns: str, tmp_path: Path) -> None:
    path, plot = tmp_path / "x.json", tmp_path / "x.svg"
    given = ["bench", *words, "--shape", "qwen3-tiny", "--rounds", "1", "--json", str(path), "--plot", str(plot)]
    assert cli.main(given) == 0
    data = json.loads(path.read_text())
    assert data["command"].startswith(f"python -m milestones bench {words[0]}")
    assert columns in data["columns"]
    assert all(list(row) == data["columns"] for row in data["rows"])
    assert all(math.isfinite(value) for row in data["rows"] for value in row.values() if isinstance(value, float))
    assert all(row["same_tokens"] == 1 for row in data["rows"])
    assert data["details"]["workload"] == words[words.index("--workload") + 1]
    assert len(data["details"]["engines"]) == len(data["rows"]) or columns in ("step_ms", "ttft_ms")
    assert all(options["dtype"] == "float32" for options in data["details"]["engines"].values())
    ET.fromstring(plot.read_text())
