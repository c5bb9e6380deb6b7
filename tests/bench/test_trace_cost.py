"""What tracing costs a step, as `python -m workshop.bench trace` measures it."""

from __future__ import annotations

import json

from workshop.bench.__main__ import main


def test_the_cost_of_tracing_is_measured_in_turn(capsys) -> None:
    assert main(["trace", "--batch-sizes", "2", "--steps", "2", "--rounds", "2", "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["steps"] == 4
    assert row["bytes_per_step"] > 50
    assert row["cost_low"] <= row["cost_high"]


def test_the_cost_of_tracing_in_a_real_shape(capsys) -> None:
    shape = ["--shape", "qwen3-tiny", "--batch-sizes", "1", "3"]
    assert main(["trace", *shape, "--steps", "2", "--rounds", "2", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(row["batch"], row["steps"]) for row in report["rows"]] == [(1, 4), (3, 4)]
    assert report["rows"][1]["bytes_per_step"] > report["rows"][0]["bytes_per_step"] > 50
    assert any("qwen3-tiny" in note for note in report["notes"])


def test_a_model_and_a_shape_are_refused_together(capsys) -> None:
    assert main(["trace", "--model", "embedded", "--shape", "qwen3-tiny"]) == 2
    assert "--model and --shape must not be given together" in capsys.readouterr().err
