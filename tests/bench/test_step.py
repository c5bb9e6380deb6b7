"""Benchmarks of M2: what they count, by hand, and the shape of what they write. Never how long anything took."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from folovllm.bench import scheduler, step, throughput
from folovllm.bench.contestant import FoloVLLM
from folovllm.bench.workload import BenchModel
from tests.bench.support import bench, refusal
from tests.helpers import make_hf_folder

pytestmark = pytest.mark.slow
TINY = "qwen3-tiny"


# The scheduler alone.


def test_a_line_keeps_its_length_and_runs_at_full_width() -> None:
    line = scheduler.Line(400)
    line.run(40)
    assert len(line.scheduler.waiting) == 400
    line.scheduler.check_invariants()
    assert line.scheduler.num_running_seqs <= scheduler.MAX_NUM_SEQS
    assert len(line.requests) == 400 + len(line.scheduler.running)


def test_a_round_counts_the_tokens_that_were_scheduled() -> None:
    line = scheduler.Line(3)
    prompts = sum(len(request.prompt_token_ids) for request in line.requests.values())
    first = line.run(1)  # the three prompts, whole, in one step
    assert first.tokens == prompts
    assert first.token * prompts == pytest.approx(first.step)


def test_scheduler_report(tmp_path: Path) -> None:
    rows = bench(["scheduler", "--waiting", "5", "20", "--steps", "10", "--rounds", "2"], tmp_path / "scheduler-x.json")
    assert [(row["waiting"], row["steps"]) for row in rows] == [(5, 20), (20, 20)]
    assert rows[0]["growth"] == 1
    assert rows[1]["growth"] == pytest.approx(rows[1]["token_us"] / rows[0]["token_us"])
    assert gc.get_freeze_count() == 0  # the collector has its objects back


# A step, taken apart.


def test_a_steps_parts_add_up(tmp_path: Path) -> None:
    """With one step there is no median between the columns and their sum."""
    rows = bench(["step", "--batch-sizes", "1", "3", "--steps", "1", "--rounds", "1"], tmp_path / "step-x.json")
    assert [row["batch"] for row in rows] == [1, 3]
    for row in rows:
        parts = [row[f"{name}_ms"] for name in ("schedule", "prepare", "update", "outputs", "forward", "sampling")]
        assert min(parts) > 0
        assert sum(parts) + row["other_ms"] == pytest.approx(row["step_ms"])
        assert row["host_ms"] == pytest.approx(row["step_ms"] - row["forward_ms"] - row["sampling_ms"])
        assert row["host_share"] == pytest.approx(row["host_ms"] / row["step_ms"])


def test_every_measured_step_decodes_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[tuple[int, int]] = []
    original = step.StepClock.step

    def watched(self: step.StepClock, engine: Any) -> dict[str, float]:
        before = engine.stats()
        seconds = original(self, engine)
        after = engine.stats()
        counts.append((after.output_tokens - before.output_tokens, after.prompt_tokens - before.prompt_tokens))
        return seconds

    monkeypatch.setattr(step.StepClock, "step", watched)
    step.run([2, 5], command="folovllm bench step", steps=3, rounds=2)
    assert counts == [(2, 0)] * 3 + [(5, 0)] * 3 + [(2, 0)] * 3 + [(5, 0)] * 3


# Several requests, in one batch.


def test_a_request_does_not_wait_for_a_longer_one(tmp_path: Path) -> None:
    model = BenchModel("tiny", str(make_hf_folder(tmp_path)), "auto")
    run = FoloVLLM(model, "float32", "cpu", 16).run([[1, 2], [3, 4, 5, 6, 7], [8, 9, 10]], [2, 4, 3])
    assert [one.tokens for one in run] == [3, 3, 2, 1]
    assert [one.prefill for one in run] == [True, False, False, False]


def test_the_cache_is_looked_at_when_it_is_fullest(tmp_path: Path) -> None:
    model = BenchModel("tiny", str(make_hf_folder(tmp_path)), "auto")
    run = FoloVLLM(model, "float32", "cpu", 16).run([[1, 2, 3, 4]], [3])
    # Four tokens after the first step and five after the second; with the third the request has ended.
    assert run.kv_used_tokens == 5
    assert run.kv_reserved_tokens is not None
    assert 5 <= run.kv_reserved_tokens <= 16


def test_throughput_tells_what_the_cache_reserves_and_uses(tmp_path: Path) -> None:
    argv = ["throughput", "--shape", TINY, "--dtype", "float32", "--peer", "hf", "--mixed", "--num-requests", "6",
            "--input-len", "16", "--output-len", "8", "--rounds", "1"]  # fmt: skip
    ours, hf = bench(argv, tmp_path / "throughput-mixed.json")
    assert 0 < ours["kv_used_tokens"] < ours["kv_reserved_tokens"]
    assert (hf["kv_used_tokens"], hf["kv_reserved_tokens"]) == (None, None)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["scheduler", "--waiting", "0"], "waiting must be at least 1, got 0"),
        (["scheduler", "--steps", "0"], "steps must be at least 1, got 0"),
        (["step", "--batch-sizes", "0"], "batch_sizes must be at least 1, got 0"),
        (["step", "--rounds", "0"], "rounds must be at least 1, got 0"),
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal(argv, capsys)


@pytest.mark.parametrize("module", [scheduler, step, throughput])
def test_no_column_is_named_twice(module: Any) -> None:
    assert len(set(module.COLUMNS)) == len(module.COLUMNS)
