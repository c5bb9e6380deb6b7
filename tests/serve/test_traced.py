"""`folovllm serve --trace`: the program itself, asked over HTTP and told to end; what it leaves is a whole trace."""

from __future__ import annotations

import gzip
import signal
import sys
from pathlib import Path

import httpx
import pytest

from folovllm.entrypoints.cli.main import main
from folovllm.tracing.reader import Trace, num_drawn, read_trace
from tests.serve.support import program

SECRET = "a private prompt"


def serve_and_ask(path: Path, *options: str, how: signal.Signals) -> None:
    """A server with three requests of 5 tokens, two of them answers to one prompt; then the signal."""
    with program("--num-kv-blocks", "64", "--trace", str(path), *options) as (url, process):
        for count in (1, 2):
            body = {"prompt": SECRET, "max_tokens": 5, "ignore_eos": True, "n": count}
            httpx.post(f"{url}/v1/completions", json=body, timeout=600).raise_for_status()
        process.send_signal(how)
        process.communicate()
        assert process.returncode == (0 if how is signal.SIGTERM else -how)


def drawn(trace: Trace) -> int:
    return sum(map(num_drawn, trace.steps))


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_server_that_is_told_to_end_leaves_a_whole_trace_that_can_be_viewed(tmp_path) -> None:
    path = tmp_path / "run.gz"
    serve_and_ask(path, how=signal.SIGTERM)
    trace = read_trace(path)
    assert trace.end is not None
    assert not trace.is_torn
    assert [arrival.num_seqs for step in trace.steps for arrival in step.arrived] == [1, 2]
    assert drawn(trace) == 5 + 2 * 5
    assert sum(len(step.ended) for step in trace.steps) == 3
    assert main(["trace", "view", str(path)]) == 0
    assert main(["trace", "export", str(path), "--perfetto", str(tmp_path / "run.json")]) == 0
    page = path.with_suffix(".html").read_text()
    assert SECRET not in page  # what a server computes belongs to others
    assert SECRET.encode() not in gzip.decompress(path.read_bytes())


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_the_engine_of_a_server_that_is_killed_ends_its_trace(tmp_path) -> None:
    path = tmp_path / "run.gz"
    serve_and_ask(path, "--trace-texts", how=signal.SIGKILL)
    trace = read_trace(path)
    assert trace.end is not None
    assert drawn(trace) == 5 + 2 * 5
    assert trace.steps[0].arrived[0].prompt == SECRET
    assert main(["trace", "view", str(path)]) == 0
    assert SECRET in path.with_suffix(".html").read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk without room, as Linux has it")
def test_a_trace_that_lacks_its_end_ends_the_program_with_an_error() -> None:
    with program("--num-kv-blocks", "64", "--trace", "/dev/full") as (url, process):
        httpx.get(f"{url}/health").raise_for_status()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate()
        assert (process.returncode, "error: trace must" in said, "traced:" in said) == (2, True, False)
