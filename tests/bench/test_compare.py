"""Two files of a benchmark beside each other: what may be compared, and what comes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from folovllm.bench import compare
from folovllm.entrypoints.cli.main import main

OLD_FILE = "docs/benchmarks/data/throughput-peers-zen5-bf16.json"


def result(seconds: list[float], **changes: Any) -> dict[str, Any]:
    """What `folovllm bench throughput --json` writes, as far as it matters here."""
    middle = sorted(seconds)[len(seconds) // 2]
    row = {
        "engine": "folovllm",
        "dtype": "float32",
        "requests": 4,
        "seconds": middle,
        "output_tokens_per_s": 64 / middle,
    }
    return {
        "name": "x",
        "title": "Throughput, tiny",
        "command": "folovllm bench throughput --json x.json",
        "versions": {"folovllm": "0.1.0"},
        "hardware": {"cpu": "a CPU", "cores": 2, "threads": 2},
        "date": "2026-11-22",
        "columns": list(row),
        "rows": [row],
        "samples": [{"seconds": seconds, "output_tokens_per_s": [64 / value for value in seconds]}],
        "notes": [],
        **changes,
    }


def write(folder: Path, **files: dict[str, Any]) -> list[str]:
    for name, data in files.items():
        (folder / f"{name}.json").write_text(json.dumps(data))
    return [str(folder / f"{name}.json") for name in files]


def verdicts(report: Any) -> dict[str, str]:
    return {row["figure"]: row["verdict"] for row in report.rows}


QUICK, SLOW = [1.0, 1.01, 1.02, 1.03, 1.04], [2.0, 2.02, 2.04, 2.06, 2.08]


def test_less_time_and_more_tokens_are_both_better(tmp_path: Path) -> None:
    report = compare.run(*write(tmp_path, a=result(SLOW), b=result(QUICK)), command="")
    assert verdicts(report) == {"seconds": "better", "output_tokens_per_s": "better"}
    ratios = {row["figure"]: row["b_over_a"] for row in report.rows}
    assert ratios == {"seconds": pytest.approx(0.5), "output_tokens_per_s": pytest.approx(2)}


def test_the_other_way_round_both_are_worse(tmp_path: Path) -> None:
    report = compare.run(*write(tmp_path, a=result(QUICK), b=result(SLOW)), command="")
    assert set(verdicts(report).values()) == {"worse"}


def test_a_difference_that_rounds_have_by_themselves_is_noise(tmp_path: Path) -> None:
    report = compare.run(*write(tmp_path, a=result([1, 2, 3, 4, 5]), b=result([2, 2, 3, 5, 6])), command="")
    assert set(verdicts(report).values()) == {"noise"}


def test_an_older_file_without_rounds_gives_a_ratio_and_no_verdict() -> None:
    report = compare.run(OLD_FILE, OLD_FILE, command="")
    assert {row["b_over_a"] for row in report.rows} == {1.0}
    assert set(verdicts(report).values()) == {"no rounds"}
    assert {row["row"] for row in report.rows} == {"folovllm", "vllm"}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"command": "folovllm bench decode"}, "b must have the benchmark of a, 'throughput', got 'decode'"),
        ({"title": "Throughput, mini"}, "b must have the title of a, 'Throughput, tiny', got 'Throughput, mini'"),
        ({"rows": [{"engine": "folovllm", "dtype": "float32", "requests": 8, "seconds": 1.0}]},
         "b must have the requests of a, 4, got 8"),
    ],
)  # fmt: skip
def test_files_of_different_things_are_refused_by_name(
    changes: dict[str, Any], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = write(tmp_path, a=result(QUICK), b=result(QUICK, **changes))
    assert main(["bench", "compare", *paths]) == 2
    assert text in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"a":' * 50_000,
        json.dumps(result([1.0], rows=[])),
        json.dumps(result([1.0], rows=[[]])),
        json.dumps(result([1.0], rows=[{"engine": []}])),
        json.dumps(result([1.0], columns=[1])),
        json.dumps(result([1.0], samples=[1])),
        json.dumps(result([1.0], details=[])),
        json.dumps(result([1.0], versions=[])),
        json.dumps(result([1.0], command=None)),
    ],
)
def test_what_no_benchmark_wrote_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match="file must be JSON that a benchmark wrote with --json"):
        compare.load(str(tmp_path / "x.json"))


def test_makers_benchmarks_are_told_apart_by_their_names_and_not_by_their_files(tmp_path: Path) -> None:
    command = "python -m workshop.bench preset nano-vllm"
    a, b = (result(QUICK, command=f"{command} --json {name}.json", name=name) for name in "ab")
    assert compare.run(*write(tmp_path, a=a, b=b), command="").rows
    with pytest.raises(ValueError, match="b must have the benchmark of a, 'throughput', got 'preset'"):
        compare.run(*write(tmp_path, a=result(QUICK), b=b), command="")


def test_another_machine_other_options_and_busy_neighbours_are_said(tmp_path: Path) -> None:
    other = result(
        QUICK,
        hardware={"cpu": "another", "cores": 2, "threads": 2},
        other_load={"is_busy": True},
        command="folovllm bench throughput --threads 2 --json y.json",
    )
    notes = " ".join(compare.run(*write(tmp_path, a=result(QUICK), b=other), command="").notes)
    assert "not the same cpu: 'a CPU' in a, 'another' in b" in notes
    assert "Other options: none in a, --threads 2 in b" in notes
    assert "kept the machine busy while b ran" in notes
    assert "while a ran" not in notes


def test_a_peer_that_only_one_file_has_is_left_out(tmp_path: Path) -> None:
    two = result(QUICK)
    two["rows"].append({**two["rows"][0], "engine": "hf"})
    two["samples"].append(two["samples"][0])
    report = compare.run(*write(tmp_path, a=two, b=result(QUICK)), command="")
    assert {row["row"] for row in report.rows} == {"folovllm"}


def test_two_runs_of_a_command_can_be_compared_and_the_table_says_how_sure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["bench", "throughput", "--shape", "qwen3-tiny", "--dtype", "float32", "--rounds", "4",
            "--num-requests", "2", "--input-len", "4", "--output-len", "3", "--json"]  # fmt: skip
    for name in "ab":
        assert main([*argv, str(tmp_path / f"{name}.json")]) == 0
    capsys.readouterr()
    assert main(["bench", "compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    out = capsys.readouterr().out
    assert "decode_tokens_per_s" in out
    assert "97%" in out
