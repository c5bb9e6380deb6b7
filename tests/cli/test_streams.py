"""The command line and what it is connected to: closed streams, pipes whose reader leaves, bytes that are no text."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table

import folovllm
from folovllm.entrypoints.cli.console import PlainConsole
from tests.m1.test_commands import GREEDY, run

ROOT = Path(folovllm.__file__).parents[1]
NO_UTF8 = b"caf\xe9".decode("utf-8", "surrogateescape")  # how Python hands over such an argument


def stdin_of(data: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")


# Closed streams, in real shells. None of these gets as far as importing torch.


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("generate hello >&-", "error: stdout is closed: there is nowhere to print to\n"),
        ("info >&-", "error: stdout is closed: there is nowhere to print to\n"),
    ],
)
def test_a_closed_stream_is_one_line_and_exit_2(command: str, text: str) -> None:
    shell = f"exec {shlex.quote(sys.executable)} -m folovllm {command}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", shell], env=environment, stderr=subprocess.PIPE, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (2, text)


@pytest.mark.exhaustive
def test_a_closed_stdin_reads_as_empty() -> None:
    shell = f"exec {shlex.quote(sys.executable)} -m folovllm chat <&-"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", shell], env=environment, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_reader_that_leaves_is_no_error() -> None:
    """`| head -1`, with the reader gone before the first line."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "folovllm", "generate", "--help"]
    done = subprocess.run(command, env=environment, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=600)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_table_for_a_reader_that_leaves_is_for_main_to_handle() -> None:
    """Rich itself would end the program with status 1."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        PlainConsole(file=Gone()).print("hello")


# Bytes that are no UTF-8.


@pytest.mark.parametrize(
    ("argv", "name"),
    [([NO_UTF8], "prompt"), (["hi", "--stop", NO_UTF8], "stop"), ([NO_UTF8, "--chat"], "messages[0]['content']")],
)
def test_an_argument_that_is_no_text(
    model: str, argv: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(["generate", *argv, "--model", model], capsys)
    assert (code, out) == (2, "")
    start = r"error: \S+" if name == "stop" else re.escape(f"error: {name}")
    *_, last = err.splitlines()  # it may have been said that the model is loaded
    assert re.fullmatch(start + r" must be text that UTF-8 can hold, got '\\udce9' at place 3 of 'caf\\udce9'", last)


def test_stdin_that_is_no_text(model: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "stdin", stdin_of(b"caf\xe9\n"))
    code, out, err = run(["generate", "-", "--model", model], capsys)
    loading, error = err.splitlines()
    assert (code, out, loading) == (2, "", f"loading {model} …")
    assert error.startswith("error: prompt must be text that UTF-8 can hold")


def test_a_line_that_is_no_text_does_not_end_the_conversation(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin_of(b"hello\ncaf\xe9\nmore\n"))
    code, _, err = run(["chat", "--model", model, *GREEDY], capsys)
    assert code == 0
    assert err.count("error: messages[2]['content'] must be text that UTF-8 can hold") == 1
    assert len(re.findall(r"\b8 tokens", err)) == 2  # not "128 tokens/s"


# What goes into a pipe.


def test_a_table_in_a_pipe_is_as_wide_as_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    out = io.StringIO()
    table = Table("name", "text", box=None, pad_edge=False)
    table.add_row("long", "x" * 200)
    table.add_row("short", "y")
    PlainConsole(file=out).print(table)
    assert out.getvalue() == f"name   text\nlong   {'x' * 200}\nshort  y\n"


def test_a_json_stream_names_the_prompt_once(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(["generate", "hello", "你好", "--model", model, "--json", "--stream", *GREEDY], capsys)
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["prompt"] for line in lines if "prompt" in line] == ["hello", "你好"]
    assert ["prompt_token_ids" in line for line in lines] == [True, *[False] * 7] * 2
    assert len({line["request_id"] for line in lines}) == 2
