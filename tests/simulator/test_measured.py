"""Costs that are measured here, and the comparison with the engine: tiny loads, a tiny model, and no time asserted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from folovllm.bench.arrivals import Arrivals
from folovllm.bench.workload import bench_model
from folovllm.entrypoints.cli.main import main
from folovllm.simulator import real
from folovllm.simulator.cost_model import Linear, StepShape
from folovllm.simulator.load import Job, Load
from folovllm.simulator.real import MeasuredStep, RealRun, calibrate, make_engine
from workshop.bench import simulator_error
from workshop.bench.__main__ import main as run_makers

TINY_LOADS = {
    "even": simulator_error.Case(Load((4, 12), (3, 5)), 5, Arrivals(50)),
    "in clumps": simulator_error.Case(Load((4, 40), (2, 6), groups=2, prefix=32), 5, Arrivals(80, burstiness=0.3)),
}


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    with bench_model(None, "qwen3-tiny") as made:
        yield made


@pytest.fixture
def run(model: Any) -> RealRun:
    return RealRun(make_engine(model, "float32", max_num_seqs=8, max_num_batched_tokens=64, num_kv_blocks=300))


def test_a_calibration_has_steps_of_all_kinds(run: RealRun):
    shapes = [step.shape for step in calibrate(run, 0, (1, 4, 8))]
    decodes = {shape.seqs for shape in shapes if shape.tokens == shape.seqs}
    assert {1, 4, 8} <= decodes
    assert any(shape.tokens == 64 for shape in shapes)
    assert any(8 < shape.tokens < 32 for shape in shapes)
    assert any(shape.tokens == 1 and shape.kv_tokens > 200 for shape in shapes)


def test_groups_larger_than_the_engine_takes_are_left_out(run: RealRun):
    assert max(step.shape.seqs for step in calibrate(run, 0, (1, 9))) == 1


def test_times_of_a_played_load_are_those_of_its_steps(run: RealRun):
    """A clock that goes one second further at each reading: a step reads it twice, at its beginning and its end."""
    ticks = count()
    run.clock = lambda: float(next(ticks))
    times = run.play(Load((4, 4), (3, 3)).jobs(2, Arrivals(), 0))
    assert [step.seconds for step in run.steps] == [1.0, 1.0, 1.0]
    assert [step.shape.tokens for step in run.steps] == [8, 2, 2]
    assert all(one.num_tokens == 3 and one.ttft < one.e2el for one in times)


def test_an_idle_engine_is_not_waited_for(run: RealRun):
    """The second request comes after a million seconds by the clock; the clock goes there at once."""
    times = run.play([Job(0.0, 4, 2), Job(1e6, 4, 2)])
    assert [one.num_tokens for one in times] == [2, 2]
    assert all(one.e2el < 1e5 for one in times)


def test_device_this_is_measured_and_named(tmp_path: Path):
    out = tmp_path / "out.json"
    argv = ["bench", "simulate", "--device", "this", "--model", "qwen3-tiny", "--num-requests", "20"]
    assert main([*argv, "--load", "chat", "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["rows"][0]["answered"] == 20
    assert "this machine" in report["title"]
    assert "qwen3-tiny" in report["title"]
    assert any(note.startswith("Step: Linear(step=") for note in report["notes"])


def test_a_validation_has_a_row_for_each_load_and_names_the_worst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(simulator_error, "CASES", TINY_LOADS)
    monkeypatch.setattr(simulator_error, "CALIBRATION_SIZES", (1, 2))
    out = tmp_path / "out.json"
    argv = ["simulator-error", "--model", "qwen3-tiny", "--clock", "cpu", "--rounds", "2"]
    assert run_makers([*argv, "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert [row["load"] for row in report["rows"]] == list(TINY_LOADS)
    for row in report["rows"]:
        assert row["worst"] == max(abs(row[error]) for error in simulator_error.ERRORS)
    worst = report["details"]["worst"]
    assert worst["error"] == max(row["worst"] for row in report["rows"])
    assert {len(rounds) for rounds in report["details"]["rounds"].values()} == {2}


def test_steps_are_compared_one_by_one():
    """Predicted 2 s each; measured 2, 1 and 4: off by 0, 100% and 50%, and by 6 / 7 in the sum."""
    steps = [MeasuredStep(StepShape(1, 1, 1, 1), seconds) for seconds in (2.0, 1.0, 4.0)]
    found = simulator_error.compare_steps(Linear(2.0, 0.0, 0.0, 0.0, 0.0), steps)
    assert found == {"step_off": 0.5, "busy_off": 6 / 7 - 1}


def test_what_holds_steps_up_is_part_of_the_mean():
    """Twenty steps of 1 s and one of 4 s: no step is said to take 4, but all together are said to take 24."""
    steps = [MeasuredStep(StepShape(1, 1, 1, 1), seconds) for seconds in [1.0] * 20 + [4.0]]
    cost = real.fit(steps)
    assert sum(cost.seconds(*step.shape) for step in steps) == pytest.approx(24.0)
