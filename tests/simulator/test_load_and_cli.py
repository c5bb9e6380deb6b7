"""Files of requests, and the command: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from folovllm.bench.arrivals import Arrivals
from folovllm.entrypoints.cli.main import main
from folovllm.simulator.load import LOADS, Job, Load, read_jobs

SMALL = ["bench", "simulate", "--num-requests", "30"]


def write(path: Path, *lines: object) -> Path:
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    path.write_text(text, "utf-8")
    return path


def rows(tmp_path: Path, *options: str) -> list[dict[str, object]]:
    out = tmp_path / "out.json"
    assert main([*SMALL, *options, "--json", str(out)]) == 0
    return json.loads(out.read_text())["rows"]


def test_a_line_of_a_file_is_a_job(tmp_path: Path):
    file = write(
        tmp_path / "r.jsonl",
        {"t": 0, "prompt_tokens": 9, "output_tokens": 3},
        "",
        {"t": 1.5, "prompt_tokens": 9, "output_tokens": 3, "group": "a", "prefix_tokens": 8, "priority": -1},
        {"t": 2, "prompt_token_ids": [5, 6], "output_tokens": 1},
    )
    assert list(read_jobs(file)) == [
        Job(0, 9, 3),
        Job(1.5, 9, 3, "a", 8, priority=-1),
        Job(2, 2, 1, token_ids=(5, 6)),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ({"t": 0, "output_tokens": 1}, "prompt_tokens must be an integer"),
        ({"t": -1, "prompt_tokens": 1, "output_tokens": 1}, "t must be non-negative"),
        ({"t": 0, "prompt_tokens": 1, "output_tokens": 0}, "output_tokens must be positive"),
        ({"t": 0, "prompt_tokens": 1, "output_tokens": 1, "lenght": 3}, "fields must be of .*'lenght'"),
        ({"t": 0, "prompt_tokens": 4, "output_tokens": 1, "group": "a", "prefix_tokens": 5}, "at most prompt_tokens"),
        ({"t": 0, "prompt_tokens": 4, "output_tokens": 1, "group": "a"}, "come with a group"),
        ({"t": 0, "prompt_tokens": 4, "output_tokens": 1, "prompt_token_ids": [1]}, "must stand alone"),
        ({"t": 0, "prompt_token_ids": [], "output_tokens": 1}, "prompt_token_ids must be a list"),
    ],
)
def test_a_wrong_line_is_named_by_its_number(tmp_path: Path, line: object, message: str):
    file = write(tmp_path / "r.jsonl", {"t": 0, "prompt_tokens": 9, "output_tokens": 3}, line)
    with pytest.raises(ValueError, match=rf"line 2 of .*{message}"):
        list(read_jobs(file))


def test_lines_must_be_in_the_order_of_time(tmp_path: Path):
    job = {"prompt_tokens": 9, "output_tokens": 3}
    with pytest.raises(ValueError, match="line 2 .* t must be at least 3"):
        list(read_jobs(write(tmp_path / "r.jsonl", {"t": 3, **job}, {"t": 2, **job})))


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
    trace = tmp_path / "run.jsonl"
    assert main([*SMALL, "--request-rate", "9", "--num-kv-blocks", "400", "--trace", str(trace)]) == 0
    capsys.readouterr()
    assert main(["trace", "info", str(trace), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 30
    assert main(["trace", "view", str(trace), "-o", str(tmp_path / "page.html")]) == 0


def test_each_replica_has_a_trace_of_its_own(tmp_path: Path):
    assert main([*SMALL, "--request-rate", "9", "--replicas", "2", "--trace", str(tmp_path / "run.jsonl")]) == 0
    assert sorted(file.name for file in tmp_path.glob("*.jsonl")) == ["run-1.jsonl", "run.jsonl"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "tpu"], "device must be one of"),
        (["--load", "tea"], "load must be one of chat"),
        (["--prompt-len", "9", "3"], "prompt_len must be two numbers"),
        (["--prefix-groups", "0"], "prefix_groups and prefix_len must both be given"),
        (["--num-requests", "0"], "num_requests must be at least 1"),
        (["--replicas", "0"], "replicas must be at least 1"),
        (["--request-rate", "-1"], "request_rate must be positive"),
        (["--urgent", "2"], "urgent must be a share"),
        (["--model", "llama-3.1-70b"], "whose weights take 141 GB"),
        (["--goodput", "speed:3"], "goodput must be of ttft:MS"),
        (["--requests", "/no/such/file"], "requests must be a file that can be read"),
        (["--requests", "/dev/null"], "requests must be a file"),
        (["--request-rate", "1", "2", "--trace", "x.jsonl"], "trace must be of one simulation"),
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
