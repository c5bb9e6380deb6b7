"""Two files of a benchmark beside each other, and the intervals that distinguish a difference from noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from milestones.bench.spread import apart, in_turn, mann_whitney_ways
from tests.bench.support import report, run
from workshop.bench import compare

OLD_FILE = "docs/benchmarks/data/throughput-peers-zen5-bf16.json"
QUICK, SLOW = [1.0, 1.01, 1.02, 1.03, 1.04], [2.0, 2.02, 2.04, 2.06, 2.08]


def result(seconds: list[float], **changes: Any) -> dict[str, Any]:
    """What `folovllm bench throughput --json` writes, as far as it matters here."""
    middle = sorted(seconds)[len(seconds) // 2]
    row = {"engine": "folovllm", "requests": 4, "seconds": middle, "output_tokens_per_s": 64 / middle}
    return {
        "title": "Throughput, tiny",
        "command": "folovllm bench throughput --json x.json",
        "hardware": {"cpu": "a CPU"},
        "columns": list(row),
        "rows": [row],
        "samples": [{"seconds": seconds, "output_tokens_per_s": [64 / value for value in seconds]}],
        **changes,
    }


def write(folder: Path, a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    for name, data in (("a", a), ("b", b)):
        (folder / f"{name}.json").write_text(json.dumps(data))
    return [str(folder / "a.json"), str(folder / "b.json")]


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [(SLOW, QUICK, "better"), (QUICK, SLOW, "worse"), ([1, 2, 3, 4, 5], [2, 2, 3, 5, 6], "noise")],
)
def test_less_time_and_more_tokens_are_both_better(a: list[float], b: list[float], verdict: str, tmp_path) -> None:
    found = report(["compare", *write(tmp_path, result(a), result(b))], tmp_path / "c.json")
    assert {row["figure"]: row["verdict"] for row in found["rows"]} == dict.fromkeys(
        ("seconds", "output_tokens_per_s"), verdict
    )


def test_an_older_file_without_rounds_gives_a_ratio_and_no_verdict(tmp_path: Path) -> None:
    rows = report(["compare", OLD_FILE, OLD_FILE], tmp_path / "c.json")["rows"]
    assert {(row["b_over_a"], row["verdict"]) for row in rows} == {(1.0, "no rounds")}
    assert {row["row"] for row in rows} == {"folovllm", "vllm"}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"command": "folovllm bench decode"}, "b must have the benchmark of a, 'throughput', got 'decode'"),
        ({"title": "Throughput, mini"}, "b must have the title of a, 'Throughput, tiny', got 'Throughput, mini'"),
        ({"rows": [{"engine": "folovllm", "requests": 8, "seconds": 1.0}]}, "b must have the requests of a, 4, got 8"),
        ({"rows": []}, "file must be JSON that a benchmark wrote with --json"),
        ({"samples": [1]}, "file must be JSON that a benchmark wrote with --json"),
    ],
)
def test_files_of_different_things_are_refused_by_name(
    changes: dict[str, Any], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", *write(tmp_path, result(QUICK), result(QUICK, **changes))]) == 2
    assert text in capsys.readouterr().err.replace("\n", " ")


def test_another_machine_other_options_and_busy_neighbours_are_said(tmp_path: Path) -> None:
    command = "folovllm bench throughput --threads 2 --json y.json"
    other = result(QUICK, hardware={"cpu": "another"}, other_load={"is_busy": True}, command=command)
    notes = " ".join(report(["compare", *write(tmp_path, result(QUICK), other)], tmp_path / "c.json")["notes"])
    assert "not the same cpu: 'a CPU' in a, 'another' in b" in notes
    assert "Other options: none in a, --threads 2 in b" in notes
    assert "kept the machine busy while b ran" in notes
    assert "while a ran" not in notes


def test_every_stored_measurement_can_be_read() -> None:
    stored = sorted(Path("docs/benchmarks/data").glob("*.json"))
    assert len(stored) > 50
    for path in stored:
        assert compare.load(str(path))["rows"]


def test_intervals_are_those_of_the_two_tests_counted_by_hand() -> None:
    # aabb 0, abab 1, abba and baab 2, baba 3, bbaa 4
    assert mann_whitney_ways(2, 2) == [1, 1, 2, 1, 1]
    found = apart([1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 3.0])
    assert (found.ratio, found.low, found.high, found.verdict) == (2.0, 2.0, 3.0, "above")
    assert found.level == pytest.approx(1 - 2 / 70)
    assert apart([1.0, 1.1, 1.2], [10.0, 11.0, 12.0]).verdict == "too few rounds"
    # P(at most 1 head of 9) = 10/512; at most 2 would be 46/512, more than 2.5%.
    found = in_turn([1.0] * 9, [float(value) for value in range(1, 10)])
    assert (found.low, found.high, found.level) == (2.0, 8.0, pytest.approx(1 - 20 / 512))
