"""`folovllm bench serve` against a server: every request is answered with as many tokens as were asked for."""

from __future__ import annotations

import json

import pytest

from folovllm.bench.serve import WARM_UP
from folovllm.entrypoints.cli.main import main
from tests.serve.support import Running, running
from workshop.bench.__main__ import main as makers


def test_both_kinds_of_load_are_measured(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    loads = ["--max-concurrency", "3", "--request-rate", "200", "--goodput", "e2el:1e9"]
    sizes = ["--num-requests", "10", "--input-len", "20", "--output-len", "6", "--seed", "7"]  # nobody else's
    before = server.llm.stats().output_tokens
    assert main(["bench", "serve", "--base-url", server.url, *loads, *sizes, "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["load"], row["answered"], row["failed"]) for row in rows] == [
        ("3 clients", 10, 0),
        ("200 requests/s", 10, 0),
    ]
    assert server.llm.stats().output_tokens - before == 2 * 10 * 6 + WARM_UP * 4
    for row in rows:
        assert 0 < row["ttft_p50_ms"] <= row["e2el_p50_ms"] <= row["e2el_p99_ms"]
        assert row["goodput_per_s"] == row["requests_per_s"]
        assert (row["prefix_hit_rate"], row["preemptions"]) == (0, 0)  # read from /metrics


def test_what_prompts_share_is_found_by_a_server_too(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--preset", "shared-prefix", "--num-requests", "6", "--output-len", "2", "--request-rate", "inf"]
    assert makers(["serve-load", "--base-url", server.url, *argv, "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["answered"] == 6
    assert row["prefix_hit_rate"] > 0


def test_a_refusal_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with running(api_keys=["k"], engine={"num_kv_blocks": 64}) as guarded:
        assert main(["bench", "serve", "--base-url", guarded.url]) == 2
        assert "401" in capsys.readouterr().err
        sizes = ["--num-requests", "2", "--input-len", "3", "--output-len", "2", "--json", "-"]
        assert main(["bench", "serve", "--base-url", guarded.url, "--api-key", "k", *sizes]) == 0
