"""`folovllm bench … --trace FILE`: every command that makes an engine writes its steps, and the others say why not."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from folovllm.entrypoints.cli.bench.recorded import UNLESS, WITH_ENGINE
from folovllm.entrypoints.cli.main import main
from folovllm.tracing.reader import read_trace

TINY = ["--shape", "qwen3-tiny"]
SMALL: dict[str, list[str]] = {
    "decode": [*TINY, "--batch-sizes", "1", "--context", "8", "--steps", "2", "--rounds", "1"],
    "latency": [*TINY, "--input-len", "4", "--output-len", "3", "--rounds", "1"],
    "sampler": [*TINY, "--end-to-end", "--num-requests", "2", "--output-len", "2", "--rounds", "1"],
    "serve-load": [*TINY, "--input-len", "4", "--output-len", "3", "--max-concurrency", "2", "--rounds", "1",
                   "--num-requests", "2"],
    "throughput": [*TINY, "--num-requests", "1", "--input-len", "4", "--output-len", "2", "--rounds", "1"],
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_with_an_engine_writes_its_steps(name: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / "run.jsonl"
    assert main(["bench", name, *SMALL[name], "--trace", str(path)]) == 0, capsys.readouterr().err
    trace = read_trace(path)
    assert trace.end is not None
    assert len(trace.steps) > 1
    assert f"folovllm trace view {path}" in capsys.readouterr().err


def test_a_preset_is_traced_too(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    argv = ["bench", "throughput", "--preset", "shared-prefix", *TINY, "--num-requests", "2", "--output-len", "2"]
    assert main([*argv, "--rounds", "1", "--trace", str(path)]) == 0
    assert len(read_trace(path).steps) > 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["serve-load", "--url", "http://127.0.0.1:1"], "must not be given with --url: the engine is in the server's"),
        (["sampler"], "must come with --end-to-end: a step of the sampler alone has no engine"),
    ],
)
@pytest.mark.parametrize("option", [["--trace", "FILE"], ["--watch"]])
def test_without_an_engine_the_option_is_refused_before_a_file_is_made(
    arguments: list[str], option: list[str], text: str, tmp_path: Path, capsys
) -> None:
    path = tmp_path / "run.jsonl"
    with suppress(SystemExit):
        assert main(["bench", *arguments, *(str(path) if word == "FILE" else word for word in option)]) == 2
    error = capsys.readouterr().err
    assert f"{option[0]} {text}" in error
    assert error.count("\n") == 1
    assert not path.exists()


def test_the_exceptions_are_of_commands_that_have_the_option() -> None:
    assert UNLESS.keys() <= set(WITH_ENGINE)
