"""Every benchmark takes the same options for the same things, and writes JSON of one form."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from folovllm.bench import probe
from folovllm.entrypoints.cli.main import main
from tests.bench.support import run
from workshop.bench.__main__ import MAKERS, build_parser

TINY = ["--shape", "qwen3-tiny", "--dtype", "float32"]
LENGTHS = ["--input-len", "6", "--output-len", "3"]
COMMANDS = {
    "throughput": [*TINY, *LENGTHS, "--num-requests", "3"],
    "preset": ["chat", *TINY, *LENGTHS, "--num-requests", "4"],
    "latency": [*TINY, *LENGTHS],
    "serve-load": [*TINY, *LENGTHS, "--num-requests", "3"],
    "breakdown": [*TINY, *LENGTHS, "--num-requests", "3"],
    "sampler": ["--batch-sizes", "1", "--vocab-sizes", "512"],
    "sampler-run": [*TINY, "--num-requests", "3", "--output-len", "3"],
    "attention": ["--shape", "qwen3-tiny", "--dtypes", "float32", "--batch-sizes", "1", "--contexts", "16"],
    "scheduler": ["--waiting", "5", "--steps", "2"],
    "decode": [*TINY, "--batch-sizes", "1", "2", "--context", "8", "--steps", "2"],
    "step": ["--batch-sizes", "1", "--steps", "2"],
}
KEYS = [
    "name", "title", "command", "seed", "versions", "hardware", "date", "columns", "rows", "samples", "spread",
    "other_load", "notes", "details",
]  # fmt: skip
KINDS = sorted(COMMANDS)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PROBE_BYTES", 2**20)
    monkeypatch.setattr(probe, "MATMUL_SIZE", {"cpu": 16, "cuda": 16})
    monkeypatch.setattr("workshop.bench.sampler.SECONDS_PER_CASE", 0.0)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_json_has_one_form(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.json"
    argv = [name, *COMMANDS[name], "--rounds", "2", "--seed", "5", "--json", str(path)]
    assert run(argv) == 0
    data = json.loads(path.read_text())
    assert list(data) == KEYS
    assert data["name"] == name
    program = "python -m workshop.bench" if name in MAKERS else "folovllm bench"
    assert data["command"] == f"{program} {' '.join(argv)}"
    assert data["seed"] == 5
    assert len(data["rows"]) == len(data["samples"]) == len(data["spread"]) > 0
    for row, samples, spread in zip(data["rows"], data["samples"], data["spread"], strict=True):
        assert list(row) == data["columns"]
        assert set(samples) <= set(row)
        assert set(spread) == set(samples)
        for key, values in samples.items():
            assert len(values) == 2, f"{key}: both rounds are kept"
            assert all(math.isfinite(value) for value in values)
            assert min(values) == spread[key]["min"] <= spread[key]["median"] <= spread[key]["max"] == max(values)
    assert any(data["samples"])
    load = data["other_load"]
    assert load is None or load["share"] >= 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_has_the_common_options(kind: str) -> None:
    assert build_parser().parse([kind, "--rounds", "1", "--seed", "2", "--threads", "3", "--json", "-"]).rounds == 1


@pytest.mark.parametrize("kind", ["throughput", "latency", "decode", "serve-load"])
def test_what_makes_an_engine_says_which_in_the_same_words(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", kind, "--shape", "qwen3-tiny", "--load-format", "auto"]) == 2
    assert "load_format must be 'dummy' for a shape, got 'auto'" in capsys.readouterr().err
