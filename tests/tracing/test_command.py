"""`--trace` and `folovllm trace`: what the commands write and say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from folovllm.entrypoints.cli.main import main
from folovllm.tracing.page import make_page
from folovllm.tracing.reader import read_trace
from tests.tracing.support import Simulated

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")


@pytest.fixture
def trace(tmp_path) -> Path:
    load = Simulated(tmp_path / "sim.gz")
    load.add("a", [1] * 20, 4)
    load.add("b", [1] * 30, 3, n=2)
    load.run()
    return tmp_path / "sim.gz"


def test_generate_writes_a_trace_and_names_it(text_model_folder, tmp_path, capsys) -> None:
    path = tmp_path / "run.gz"
    options = ["--model", str(text_model_folder), "--max-tokens", "3", "--temperature", "0"]
    assert main(["generate", "hello", *options, "--trace", str(path)]) == 0
    assert f"folovllm trace view {path}" in capsys.readouterr().err
    assert [step.seq_ids for step in read_trace(path).steps] == [["stream-0-0"]] * 3


@needs_full
def test_a_full_disk_costs_the_trace_and_not_the_answer(text_model_folder, capsys) -> None:
    options = ["generate", "hello", "--model", str(text_model_folder), "--max-tokens", "3", "--temperature", "0"]
    assert main(options) == 0
    answer = capsys.readouterr().out
    assert main([*options, "--trace", "/dev/full"]) == 2
    said = capsys.readouterr()
    assert said.out == answer
    assert said.err.splitlines()[-1] == (
        "error: trace must be a file with room for all of it, got '/dev/full'; it is incomplete: "
        "No space left on device"
    )
    assert "traced:" not in said.err


@needs_full
@pytest.mark.parametrize("argv", [["view", "-o"], ["export", "--perfetto"]])
def test_a_page_that_is_not_written_whole_is_told(trace, argv: list[str], capsys) -> None:
    assert main(["trace", argv[0], str(trace), argv[1], "/dev/full"]) == 2
    assert "got '/dev/full'; it is incomplete: No space left on device" in capsys.readouterr().err


def test_a_page_names_no_other_host(trace) -> None:
    page = re.sub(r'id="data">.*?</script>', "", make_page([read_trace(trace), read_trace(trace)]))
    assert not re.findall(r"""(?:src|href)\s*=|url\(|@import|https?://""", page)
    assert "default-src 'none'" in page


def test_view_writes_beside_the_trace(trace, capsys) -> None:
    assert main(["trace", "view", str(trace)]) == 0
    assert trace.with_suffix(".html").read_text().startswith("<!doctype html>")
    assert f"written: {trace.with_suffix('.html')}" in capsys.readouterr().err


def test_a_trace_without_a_step_has_no_page(tmp_path, capsys) -> None:
    Simulated(tmp_path / "sim.gz")
    assert main(["trace", "view", str(tmp_path / "sim.gz")]) == 2
    assert "trace sim.gz has no step yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["view", "TRACE", "TRACE", "TRACE"], "a page shows one trace or two, got 3"),
        (["view", "TRACE", "-o", "TRACE"], "output must not be the trace itself"),
        (["view", "TRACE", "-o", "no/such/folder/x.html"], "output must be in an existing folder"),
        (["export", "nothing.gz", "--perfetto", "x.json"], "No such file"),
        (["info", "README.md"], "is no gzip file"),
    ],
)
def test_wrong_arguments_are_answered_in_one_line(trace, capsys, arguments, text) -> None:
    assert main(["trace", *(str(trace) if word == "TRACE" else word for word in arguments)]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


def test_info_counts_what_the_trace_holds(trace, capsys) -> None:
    """20 and 30 prompt tokens in one step, then 3 steps: a fork's first token is drawn with its parent's."""
    assert main(["trace", "info", str(trace), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["steps"] == 4
    assert (info["requests"], info["sequences"]) == (2, 3)
    assert (info["prefill_tokens"], info["output_tokens"]) == (50, 4 + 3 + 3)
    assert (info["ttft_p50_ms"], info["itl_p50_ms"]) == (10.0, 10.0)


def test_perfetto_gets_spans_that_do_not_overlap_within_a_track(trace, tmp_path, capsys) -> None:
    target = tmp_path / "run.json"
    assert main(["trace", "export", str(trace), "--perfetto", str(target)]) == 0
    events = json.loads(target.read_text())["traceEvents"]
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert len(tracks) == 1 + 1 + 3  # steps, their parts, three sequences
    for spans in tracks.values():
        assert all(before[1] <= after[0] for before, after in zip(sorted(spans), sorted(spans)[1:], strict=False))
    names = {event["name"] for event in events if event["pid"] == 2 and event["ph"] == "X"}
    assert names == {"prefill", "decode"}
