"""Drawn loads, and the command: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from folovllm.bench.arrivals import Arrivals
from folovllm.entrypoints.cli.main import main
from folovllm.simulator.load import LOADS, Load

SMALL = ["bench", "simulate", "--num-requests", "30"]


def rows(tmp_path: Path, *options: str) -> list[dict[str, object]]:
    out = tmp_path / "out.json"
    assert main([*SMALL, *options, "--json", str(out)]) == 0
    return json.loads(out.read_text())["rows"]


def test_drawn_jobs_have_the_lengths_asked_for():
    jobs = list(Load((5, 9), (2, 4), groups=3, prefix=16, urgent=0.5).jobs(200, Arrivals(10), 0))
    assert {job.prompt_tokens - 16 for job in jobs} == set(range(5, 10))
    assert {job.output_tokens for job in jobs} == {2, 3, 4}
    assert {job.group for job in jobs} == {"g0", "g1", "g2"}
    assert 60 < sum(job.priority == -1 for job in jobs) < 140


def test_settings_given_several_times_make_a_row_for_each_combination(tmp_path: Path):
    found = rows(tmp_path, "--request-rate", "5", "50", "--max-num-batched-tokens", "256", "2048")
    assert [row["setting"] for row in found] == [
        "requests/s 5, budget 256", "requests/s 5, budget 2048",
        "requests/s 50, budget 256", "requests/s 50, budget 2048",
    ]  # fmt: skip
    assert all(row["answered"] == 30 for row in found)


def test_a_row_has_the_names_of_a_measured_load(tmp_path: Path):
    (row,) = rows(tmp_path, "--request-rate", "5", "--goodput", "ttft:1000", "--urgent", "0.5")
    for name in ("ttft_p50_ms", "tpot_p95_ms", "itl_p99_ms", "e2el_p99_ms", "goodput_per_s", "urgent_ttft_p95_ms"):
        assert row[name] > 0


@pytest.mark.parametrize("load", LOADS)
def test_every_preset_is_answered(tmp_path: Path, load: str):
    (row,) = rows(tmp_path, "--load", load, "--request-rate", "1")
    assert (row["answered"], row["failed"]) == (30, 0)


def test_a_trace_can_be_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    trace = tmp_path / "run.gz"
    assert main([*SMALL, "--request-rate", "9", "--num-kv-blocks", "400", "--trace", str(trace)]) == 0
    capsys.readouterr()
    assert main(["trace", "info", str(trace), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 30
    assert main(["trace", "view", str(trace), "-o", str(tmp_path / "page.html")]) == 0


def test_each_replica_has_a_trace_of_its_own(tmp_path: Path):
    assert main([*SMALL, "--request-rate", "9", "--replicas", "2", "--trace", str(tmp_path / "run.gz")]) == 0
    assert sorted(file.name for file in tmp_path.glob("*.gz")) == ["run-1.gz", "run.gz"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "tpu"], "device must be one of"),
        (["--step-overhead-us", "-1"], "step_overhead_us must be non-negative"),
        (["--prompt-len", "9", "3"], "prompt_len must be two numbers"),
        (["--prefix-groups", "0"], "prefix_groups and prefix_len must both be given"),
        (["--request-rate", "-1"], "request_rate must be positive"),
        (["--urgent", "2"], "urgent must be a share"),
        (["--model", "llama-3.1-70b"], "whose weights take 141 GB"),
        (["--goodput", "speed:3"], "goodput must be of ttft:MS"),
        (["--request-rate", "1", "2", "--trace", "x.gz"], "trace must be of one simulation"),
    ],
)
def test_a_wrong_option_is_one_line_with_its_name(options: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main([*SMALL, *options]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
@pytest.mark.parametrize("option", ["--trace", "--json"])
def test_a_full_disk_costs_the_file_and_not_the_table(option: str, capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "simulate", "--num-requests", "2", option, "/dev/full"]) == 2
    said = capsys.readouterr()
    assert "answered" in said.out
    assert "it is incomplete: No space left on device" in said.err
