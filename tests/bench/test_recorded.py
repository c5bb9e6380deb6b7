"""`folovllm bench … --trace FILE`: every command that makes an engine writes its steps, and the others say why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from folovllm.tracing.reader import read_trace
from tests.bench.support import run

TINY = ["--shape", "qwen3-tiny"]
SMALL: dict[str, list[str]] = {
    "decode": [*TINY, "--batch-sizes", "1", "--context", "8", "--steps", "2", "--rounds", "1"],
    "latency": [*TINY, "--input-len", "4", "--output-len", "3", "--rounds", "1"],
    "sampler-run": [*TINY, "--num-requests", "2", "--output-len", "2", "--rounds", "1"],
    "serve-load": [*TINY, "--input-len", "4", "--output-len", "3", "--max-concurrency", "2", "--rounds", "1",
                   "--num-requests", "2"],
    "throughput": [*TINY, "--num-requests", "1", "--input-len", "4", "--output-len", "2", "--rounds", "1"],
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_with_an_engine_writes_its_steps(name: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / "run.jsonl"
    assert run([name, *SMALL[name], "--trace", str(path)]) == 0, capsys.readouterr().err
    trace = read_trace(path)
    assert trace.end is not None
    assert len(trace.steps) > 1
    assert f"folovllm trace view {path}" in capsys.readouterr().err


def test_a_preset_is_traced_too(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    argv = ["preset", "shared-prefix", *TINY, "--num-requests", "2", "--output-len", "2"]
    assert run([*argv, "--rounds", "1", "--trace", str(path)]) == 0
    assert len(read_trace(path).steps) > 1


@pytest.mark.parametrize("option", [["--trace", "FILE"], ["--watch"]])
def test_a_server_s_engine_is_not_traced_from_here(option: list[str], tmp_path: Path, capsys) -> None:
    path = tmp_path / "run.jsonl"
    words = [str(path) if word == "FILE" else word for word in option]
    assert run(["serve-load", "--url", "http://127.0.0.1:1", *words]) == 2
    error = capsys.readouterr().err
    assert f"{option[0]} must not be given with --url: the engine is in the server's process" in error
    assert error.count("\n") == 1
    assert not path.exists()
