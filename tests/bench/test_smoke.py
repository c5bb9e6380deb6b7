"""Each benchmark runs, prints its table and writes JSON of one form; what is wrong is refused before it measures."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from folovllm.bench.command import BENCHES
from folovllm.tracing.reader import read_trace
from tests.bench.support import report, run
from tests.helpers import make_hf_folder
from workshop.bench.__main__ import MAKERS, build_parser

ROOT = Path(__file__).parents[2]
TINY = ["--shape", "qwen3-tiny", "--dtype", "float32"]
LENGTHS = ["--input-len", "6", "--output-len", "3"]
ROUNDS = ["--rounds", "2", "--seed", "5"]
COMMANDS = {
    "throughput": [*TINY, *LENGTHS, *ROUNDS, "--num-requests", "3", "--quantization", "w4a8", "--quantize-head"],
    "latency": [*TINY, *LENGTHS, *ROUNDS],
    "serve-load": [*TINY, *LENGTHS, *ROUNDS, "--num-requests", "3", "--max-concurrency", "2"],
    "decode": [*TINY, *ROUNDS, "--batch-sizes", "1", "2", "--context", "8", "--steps", "2"],
    "step": [*ROUNDS, "--batch-sizes", "1", "--steps", "2"],
    "speculation": [*TINY, *LENGTHS, *ROUNDS, "--batch-sizes", "1", "2"],
    "scheduler": [*ROUNDS, "--waiting", "5", "--steps", "2"],
    "preset": ["chat", *TINY, *LENGTHS, *ROUNDS, "--num-requests", "4", "--without", "fusing"],
    "ablate": [*TINY, *LENGTHS, *ROUNDS, "--num-requests", "2", "--features", "graphs", "kernels", "trace"],
    "sampler": [*ROUNDS, "--batch-sizes", "1", "--vocab-sizes", "512"],
    "attention": ["--shape", "qwen3-tiny", *ROUNDS, "--dtypes", "float32", "--batch-sizes", "1", "--contexts", "16"],
    "kvcache": ["--model", "embedded", "--texts", "2", "--length", "12"],
    "timeline": ["--gpu", "h100"],
    "collectives": ["--calls", "10"],
    "experts": [*ROUNDS, "--batch-sizes", "1", "--context", "8", "--steps", "1"],
    "ranks": [*TINY, *ROUNDS, "--batch-sizes", "1", "--context", "8", "--steps", "10"],
}
KEYS = [
    "name", "title", "command", "seed", "versions", "hardware", "date", "columns", "rows", "samples", "other_load",
    "notes", "details",
]  # fmt: skip
ELSEWHERE = {"compare", "simulate", "serve"}
"""Whose runs are in test_compare.py, in tests/simulator and in tests/serve."""
USERS = [name for name in COMMANDS if name in BENCHES]
PROGRAMS = {"workshop": "python -m workshop.bench", "folovllm": "folovllm bench"}


def test_none_is_left_out() -> None:
    assert set(COMMANDS) | ELSEWHERE == set(BENCHES | MAKERS)


@pytest.mark.parametrize(
    ("name", "program"), [*((name, "workshop") for name in COMMANDS), *((name, "folovllm") for name in USERS)]
)
def test_each_prints_its_table_and_writes_json_of_one_form(name: str, program: str, tmp_path: Path, capsys) -> None:
    argv, path = [name, *COMMANDS[name]], tmp_path / "made.json"
    data = report(argv, path, program)
    shown = capsys.readouterr().out
    assert data["title"] in shown
    assert list(data) == KEYS
    assert data["command"] == f"{PROGRAMS[program]} {' '.join(argv)} --json {path}"
    assert len(data["rows"]) == len(data["samples"]) > 0
    for row, samples in zip(data["rows"], data["samples"], strict=True):
        assert list(row) == data["columns"]
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))
        assert set(samples) <= set(row)
    if "--rounds" in argv:
        assert data["seed"] == 5
        assert all(len(values) == 2 for samples in data["samples"] for values in samples.values())
        assert any(data["samples"])


@pytest.mark.parametrize("name", BENCHES | MAKERS)
def test_each_has_options_and_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse([name, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    assert "--json" in shown
    assert "default: [" not in shown


@pytest.mark.parametrize("argv", [["--help"], ["latancy"]], ids=" ".join)
def test_the_list_and_a_wrong_name_import_no_torch(argv: list[str]) -> None:
    code = (
        "import sys\nfrom folovllm.entrypoints.cli.main import main\n"
        f"try: code = main(['bench', *{argv!r}])\nexcept SystemExit as exit: code = exit.code\n"
        "print(code, 'torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"{0 if '--help' in argv else 2} False", done.stderr


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["latency", "--shape", "gpt-5"], "invalid choice: 'gpt-5'"),
        (["latency", "--model", "/no/such/folder"], "no such folder"),
        (["latency", "--rounds", "0"], "--rounds: must be at least 1, got 0"),
        (["latency", "--output-len", "1"], "--output-len: must be at least 2, got 1"),
        (["latency", "--dtype", "bf16"], "did you mean 'bfloat16'?"),
        (["latency", "--peer", "hg"], "peer must be one of hf"),
        (["throughput", "--quantization", "w3a16"], "'w3a16'"),
        (["latency", *TINY, "--load-format", "auto"], "load_format must be 'dummy' for a shape, got 'auto'"),
        (["speculation", *TINY, "--acceptance", "1.5"], "acceptance must be from 0 to 1, got 1.5"),
        (["ablate", *TINY, "--features", "speed"], "features must be of graphs, ahead"),
        (["preset", "chat", *TINY, "--without", "speed"], "without must be of graphs, ahead"),
        (["preset", "chat", *TINY, "--input-len", "5000"], "must leave the longest request at most 2048 tokens"),
        (["kvcache", "--json", "/no/such/folder/x.json"], "json must be in an existing folder"),
        (["scheduler", "--trace", "x"], "unknown argument '--trace'"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):  # argparse's own way out
        assert run(argv) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith("error: ")
    assert text in captured.err


def test_a_benchmark_with_an_engine_writes_its_steps(tmp_path: Path) -> None:
    assert run(["decode", *COMMANDS["decode"], "--trace", str(tmp_path / "run.gz")]) == 0
    assert len(read_trace(tmp_path / "run.gz").steps) > 1


def test_the_host_alone_is_taken_apart(tmp_path: Path) -> None:
    argv = ["decode", "--stub", *ROUNDS, "--batch-sizes", "1", "3", "--context", "8", "--steps", "1"]
    rows = report(argv, tmp_path / "x.json")["rows"]
    assert [(row["output_kind"], row["batch"]) for row in rows] == [
        ("final_only", 1), ("final_only", 3), ("cumulative", 1), ("cumulative", 3)
    ]  # fmt: skip
    assert all(row["host_ms"] > 0 for row in rows)


def test_sampling_is_compared_on_the_requests_of_a_preset(tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path / "model", max_position_embeddings=512)
    argv = ["ablate", "--model", str(folder), "--load-format", "dummy", "--dtype", "float32", "--rounds", "1"]
    (row,) = report([*argv, "--preset", "gpt2-sampling", "--features", "sampling"], tmp_path / "x.json")["rows"]
    assert (row["feature"], row["ratio"] > 0) == ("fast sampling", True)
