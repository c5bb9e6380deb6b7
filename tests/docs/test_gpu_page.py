"""The page about the GPU's engine shows what the model of its changes predicts today."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workshop.bench.__main__ import build_parser
from workshop.bench.gpu_changes import BATCHES, BF16, SETTINGS, calibrated, measured_contexts, measured_us
from workshop.bench.gpu_experts import launches_of_torch
from workshop.bench.time_line import run
from workshop.bench.workload_steps import host_us, workload_seconds

DATA = Path(__file__).parents[2] / "docs/benchmarks/data"


@pytest.mark.parametrize("name", ["changes", "goals", "large", "experts", "adapters"])
def test_the_table_is_what_is_predicted_today(name: str) -> None:
    said = json.loads((DATA / f"gpu-{name}-h200.json").read_text(encoding="utf-8"))
    today = run(build_parser().parse(["timeline", "--predict", name]))
    for row, shown in zip(today.rows, said["rows"], strict=True):
        assert row == pytest.approx(shown)
    assert said["notes"] == today.notes


def test_the_model_is_near_what_was_measured() -> None:
    for batch in BATCHES:
        assert calibrated(measured_contexts(batch)).total == pytest.approx(measured_us(batch), rel=0.06)


def test_no_change_adds_time_to_a_step_and_each_takes_some_from_one() -> None:
    steps = [calibrated(measured_contexts(batch)) for batch in BATCHES]
    for name, change in BF16.items():
        after = [change(step) for step in steps]
        gains = [before.total - step.total for before, step in zip(steps, after, strict=True)]
        assert min(gains) >= 0 < max(gains), name
        steps = after
    for step in steps:
        one, many = (SETTINGS[name](step).total for name in SETTINGS if name.startswith("top-"))
        assert step.total < many < one


def test_no_predicted_step_is_shorter_than_what_the_host_does_meanwhile() -> None:
    of_host = workload_seconds(lambda contexts: 0.0)
    assert of_host == workload_seconds(lambda contexts: host_us(len(contexts))) > 0.0
    assert host_us(36) == pytest.approx((host_us(8) + host_us(64)) / 2)
    rows = json.loads((DATA / "decode-stub.json").read_text(encoding="utf-8"))["rows"]
    assert [host_us(row["batch"]) for row in rows[:4]] == [1e3 * row["host_ms"] for row in rows[:4]]


def test_torchs_launches_of_a_router_are_counted() -> None:
    """Softmax, sort, sum, division, sort, range and search. Of several tokens what was chosen is copied, too."""
    assert launches_of_torch(1) == 1 + 4 + 1 + 1 + 4 + 1 + 1
    assert launches_of_torch(8) == launches_of_torch(1) + 1
