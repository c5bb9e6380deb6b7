"""What a first start says: kernels that are compiled, or cannot be; and nothing where nothing is to be said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import folovllm
from folovllm import LLM, SamplingParams
from folovllm.utils.cached_library import cached_library
from folovllm.utils.cpu_kernels import unavailable_reason
from tests.m1.test_commands import run

ROOT = Path(folovllm.__file__).parents[1]
needs_kernels = pytest.mark.skipif(unavailable_reason() is not None, reason="the CPU kernels cannot run here")


def start(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, into pipes."""
    command = [sys.executable, "-m", "folovllm", *argv]
    whole = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, env=whole, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600)


@pytest.mark.exhaustive
@needs_kernels
def test_without_a_compiler_demo_says_so_once_and_what_it_costs() -> None:
    done = start("demo", CXX="/no/such/compiler")
    assert done.returncode == 0
    assert done.stderr.count("no C++ compiler found: install g++, or name one in CXX") == 1
    assert "a token takes several times as long" in done.stderr
    assert "CPU kernels" not in start("demo", FOLOVLLM_CPU_KERNELS="no").stderr  # as it was asked for


def test_what_takes_long_is_said_before_it_begins_also_in_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said: list[str] = []

    def build(library: Path) -> None:
        said.append(capsys.readouterr().err)
        library.write_bytes(b"code")

    cached_library("lib", "compiling something", build)
    cached_library("lib", "compiling something", build)
    assert said == ["compiling something …\n"]
    assert capsys.readouterr().err == ""


def test_a_progress_bar_writes_nothing_into_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    LLM().generate("Once", SamplingParams(max_tokens=2), use_tqdm=True)
    assert capsys.readouterr() == ("", "")


def test_no_command_writes_an_empty_line_into_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--max-tokens", "3", "--seed", "0"]  # the embedded model's words are no lines of their own
    for argv in (["demo"], ["generate", "a", "b", *short], ["generate", "a", "--n", "2", *short]):
        _, out, err = run(argv, capsys)
        assert "" not in [*out.splitlines(), *err.splitlines()]
