"""`bench serve-load`: what it asks for, what it counts, and what it refuses, with a server made here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from folovllm.bench.arrivals import Arrivals
from folovllm.bench.http_server import Target
from folovllm.bench.load_requests import LoadRequest, Work, random_work, read_prompts
from folovllm.bench.metrics import RequestTimes
from folovllm.bench.serve_load import WARM_UP, run
from folovllm.bench.server import CacheCounters
from folovllm.entrypoints.cli.main import main
from workshop.bench.__main__ import main as makers

SMALL = ["--shape", "qwen3-tiny", "--dtype", "float32", "--input-len", "8", "--output-len", "4"]


class Scripted:
    """Answers every request in the same time, and remembers what it was asked."""

    label, poll_seconds = "scripted", 1.0

    def __init__(self) -> None:
        self.asked: list[LoadRequest] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def usable(self, ids: list[int]) -> list[int]:
        return [each % 512 for each in ids]

    async def ask(self, request: LoadRequest) -> RequestTimes:
        self.asked.append(request)
        if request.prompt[0] % 2:
            return RequestTimes(problem="odd")
        return RequestTimes([0.1, 0.2], num_tokens=request.max_tokens, e2el=0.2)

    async def counters(self) -> CacheCounters:
        """20 tokens looked up and 5 found for each request; half of the blocks in use."""
        count = len(self.asked)
        return CacheCounters(kv_usage=0.5, prefix_queries=20 * count, prefix_hits=5 * count, preemptions=count)


def asked(work: Work, loads: list[Arrivals]) -> list[LoadRequest]:
    server = Scripted()
    run(server, work, loads, command="c")
    return server.asked


def test_a_seed_repeats_the_same_requests_to_the_token() -> None:
    loads = [Arrivals(max_concurrency=2)]
    first, again, other = (asked(random_work(5, 9, seed=seed), loads) for seed in (0, 0, 1))
    assert first == again != other


def test_no_load_finds_the_prompts_of_the_one_before() -> None:
    prompts = [tuple(request.prompt) for request in asked(random_work(4, 9), [Arrivals()] * 3)]
    assert len(prompts) == WARM_UP + 3 * 4
    assert len(set(prompts)) == len(prompts)


def test_failed_requests_are_counted_and_said() -> None:
    report = run(Scripted(), random_work(20, 4), [Arrivals()], command="c", goals={"ttft": 100.0})
    (row,) = report.rows
    assert row["answered"] + row["failed"] == 20
    assert 0 < row["failed"] < 20
    assert row["ttft_p50_ms"] == pytest.approx(100)
    assert row["goodput_per_s"] == pytest.approx(row["requests_per_s"])
    assert "failed: odd" in report.notes


def test_the_cache_s_counters_are_those_of_the_load_alone() -> None:
    (row,) = run(Scripted(), random_work(8, 4), [Arrivals()], command="c").rows
    assert (row["kv_peak_share"], row["prefix_hit_rate"], row["preemptions"]) == (0.5, 0.25, 8)


def test_all_rounds_are_kept_beside_their_median() -> None:
    report = run(Scripted(), random_work(4, 4), [Arrivals()], command="c", rounds=3)
    data = json.loads(report.to_json())
    (samples,), (spread,) = data["samples"], data["spread"]
    assert len(samples["seconds"]) == 3
    assert data["rows"][0]["seconds"] == spread["seconds"]["median"] == sorted(samples["seconds"])[1]


def test_an_engine_in_this_process_answers_every_request(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["serve-load", *SMALL, "--num-requests", "6", "--max-concurrency", "2", "--request-rate", "500", "inf"]
    assert main(["bench", *argv, "--goodput", "ttft:1e9", "tpot:1e9", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["load"], row["answered"], row["failed"]) for row in rows] == [
        ("2 clients", 6, 0),
        ("500 requests/s", 6, 0),
        ("all at once", 6, 0),
    ]
    for row in rows:
        assert row["goodput_per_s"] == row["requests_per_s"]
        assert 0 < row["ttft_p50_ms"] <= row["ttft_p95_ms"] <= row["ttft_p99_ms"] <= row["e2el_p99_ms"]
        assert 0 < row["kv_peak_share"] <= 1


def test_an_engine_that_runs_out_of_blocks_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """4 sequences that grow to 100 tokens do not fit into 10 blocks of 16."""
    argv = ["serve-load", "--shape", "qwen3-tiny", "--dtype", "float32", "--input-len", "20", "--output-len", "80"]
    argv += ["--num-requests", "4", "--request-rate", "inf", "--num-kv-blocks", "10", "--max-model-len", "128"]
    assert main(["bench", *argv, "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["answered"] == 4
    assert row["preemptions"] > 0


def test_the_parts_of_a_request_add_up_to_its_first_token(capsys: pytest.CaptureFixture[str]) -> None:
    """A single request: each part's percentiles are then the part itself."""
    argv = ["breakdown", "--model", "embedded", "--num-requests", "1", "--max-concurrency", "1"]
    assert makers([*argv, "--input-len", "12", "--output-len", "5", "--json", "-"]) == 0
    rows = {row["part"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    ms = {part: row["p50_ms"] for part, row in rows.items()}
    assert ms["submit wall"] + ms["queue wait"] + ms["prefill to first token"] == pytest.approx(ms["TTFT"])
    assert ms["tokenise"] < ms["add_request"] < ms["submit wall"]
    assert rows["ITL"]["count"] <= 4  # tokens that come while the reader is busy go out as one piece
    assert ms["TTFT"] + 4 * ms["TPOT"] <= ms["latency"]
    assert all(row["completion_tokens_per_s"] > 0 for row in rows.values())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--burstiness", "0.5"], "burstiness must come with a request_rate"),
        (["--request-rate", "0"], "request_rate must be positive, got 0"),
        (["--max-concurrency", "0"], "max_concurrency must be at least 1, got 0"),
        (["--goodput", "itl:5"], "goodput must be of ttft:MS"),
        (["--num-requests", "0"], "num_requests must be at least 1, got 0"),
        (["--rounds", "0"], "rounds must be at least 1, got 0"),
        (["--api-key", "k"], "api_key must be given with url"),
        (["--url", "http://127.0.0.1:1", "--model", "embedded"], "model must not be given with url"),
        (["--url", "http://127.0.0.1:1", "--num-kv-blocks", "9"], "num_kv_blocks must not be given with url"),
        (["--load-format", "auto"], "load_format must be 'dummy' for a shape"),
    ],
)
def test_what_cannot_be_is_refused_by_name(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    small = [] if "--url" in argv else ["--shape", "qwen3-tiny"]
    assert main(["bench", "serve-load", *small, *argv]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "https://x", "http://", "http://x:99999", "ftp://x"])
def test_only_an_address_will_do(url: str) -> None:
    with pytest.raises(ValueError, match="url must be like"):
        Target.of(url, None)


def prompts_file(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


ONE = '{"prompt": "Once upon a time", "output_tokens": 3}'
TWO = '{"prompt": "从前有一只小猫", "output_tokens": 5}'


def test_a_file_s_prompts_are_sent_as_they_are_in_every_round(tmp_path: Path) -> None:
    given = read_prompts(prompts_file(tmp_path, ONE, "", TWO))
    server = Scripted()
    server.ask = lambda request: _answer(server, request)  # type: ignore[method-assign]
    run(server, Work(given, "texts"), [Arrivals(max_concurrency=1)], command="c", rounds=2)
    assert server.asked[WARM_UP:] == [*given, *given]
    assert [(each.prompt, each.max_tokens) for each in given] == [("Once upon a time", 3), ("从前有一只小猫", 5)]


async def _answer(server: Scripted, request: LoadRequest) -> RequestTimes:
    server.asked.append(request)
    return RequestTimes([0.1], num_tokens=request.max_tokens, e2el=0.1)


def test_output_len_takes_the_place_of_the_file_s(tmp_path: Path) -> None:
    assert [each.max_tokens for each in read_prompts(prompts_file(tmp_path, ONE, TWO), 9)] == [9, 9]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: is not JSON: Expecting property name"),
        ('{"prompt": "", "output_tokens": 3}', "line 2: it must be like"),
        ('{"prompt": "a"}', "line 2: output_tokens must be given"),
        ('{"prompt": "a", "output_tokens": 0}', "line 2: output_tokens must be"),
    ],
)
def test_a_wrong_line_is_named_by_its_number(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_prompts(prompts_file(tmp_path, ONE, line))


def test_a_file_without_requests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has none"):
        read_prompts(prompts_file(tmp_path, ""))
    with pytest.raises(ValueError, match="dataset must be a file"):
        read_prompts(tmp_path / "nowhere")


def test_a_file_is_a_load_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = prompts_file(tmp_path, ONE, TWO)
    argv = ["serve-load", "--model", "embedded", "--dataset", str(path), "--request-rate", "inf"]
    assert main(["bench", *argv, "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["answered"], round(row["output_tokens_per_s"] * row["seconds"])) == (2, 8)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model", "embedded", "--input-len", "4"], "input_len must not be given with dataset"),
        (["--shape", "qwen3-tiny"], "dataset must come with url or model"),
        (["--model", "embedded", "--num-requests", "3"], r"num_requests must be in \[1, 2\]"),
    ],
)
def test_a_file_bears_no_second_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    path = prompts_file(tmp_path, ONE, TWO)
    assert main(["bench", "serve-load", "--dataset", str(path), *more]) == 2
    assert re.search(message, capsys.readouterr().err)
