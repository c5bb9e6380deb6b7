"""Two clients of one server in turn: who asks when, that both ask the same, and what is said of their figures."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from folovllm.bench.arrivals import Arrivals
from folovllm.bench.http_server import Target
from folovllm.bench.load_requests import LoadRequest
from folovllm.bench.metrics import RequestTimes
from folovllm.bench.peers.registry import VLLM
from folovllm.bench.report import Report
from folovllm.bench.serve_load import WARM_UP
from workshop.bench.__main__ import main
from workshop.bench.serve_peer import VLLMArrivals, VLLMClient, compare, run

FAKE = '''
"""What serve_peer_worker.py uses of vLLM's benchmarks, in place of them."""
import json, os

print("vLLM prints to stdout whenever it likes")


def add_cli_args(parser):
    for name in ("backend", "base-url", "model", "tokenizer", "dataset-name", "dataset-path", "percentile-metrics",
                 "metric-percentiles"):
        parser.add_argument(f"--{name}")
    for name in ("custom-output-len", "num-prompts", "temperature", "seed", "ready-check-timeout-sec", "num-warmups",
                 "max-concurrency"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("request-rate", "burstiness"):
        parser.add_argument(f"--{name}", type=float)
    for name in ("skip-chat-template", "disable-shuffle", "ignore-eos", "disable-tqdm", "save-detailed"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--goodput", nargs="+")


def main(args):
    print("a table")
    with open(os.environ["FAKE_LOG"], "a") as log:
        log.write("v")
    with open(args.dataset_path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    with open(os.environ["FAKE_ASKED"], "w") as file:
        json.dump({"rows": rows, "goodput": args.goodput, "model": args.model}, file)
    way = os.environ.get("FAKE_WAY")
    if way == "exits":
        raise SystemExit("no such tokenizer")
    result = {f"{what}_{name}_ms": 50.0 for what in ("mean", "p50", "p99") for name in ("ttft", "tpot", "itl", "e2el")}
    count = args.num_prompts
    return {
        **result,
        "completed": count - (way == "fails"),
        "errors": [""] * (count - 1) + ["refused" if way == "fails" else ""],
        "total_output_tokens": sum(row["output_tokens"] for row in rows) - (way == "short"),
        "output_throughput": 10.0,
        "request_goodput": 0.0 if args.goodput else None,
        "start_times": [100.0 + 3.0 * number for number in range(count)],
    }
'''
REQUESTS = [LoadRequest(text, length) for text, length in (("a cat", 3), ("小猫", 2), ("a key", 2))]


class Scripted:
    """Every first token after 100 ms, and the further ones in the next 100. Writes an o for each request."""

    label, url = "scripted", "http://127.0.0.1:1"
    target = Target("127.0.0.1", 1, "", None, "served")

    async def start(self) -> None: ...

    async def ask(self, request: LoadRequest) -> RequestTimes:
        with open(os.environ["FAKE_LOG"], "a") as log:
            log.write("o")
        return RequestTimes([0.1, 0.2], num_tokens=request.max_tokens, e2el=0.2)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages for the worker: vllm, and pandas."""
    benchmarks = tmp_path / "packages" / "vllm" / "benchmarks"
    benchmarks.mkdir(parents=True)
    (benchmarks / "__init__.py").touch()
    (benchmarks / "serve.py").write_text(FAKE, encoding="utf-8")
    (benchmarks.parent / "__init__.py").write_text('__version__ = "0.0.stand-in"', encoding="utf-8")
    (tmp_path / "packages" / "pandas.py").touch()
    for name, value in (("PYTHONPATH", "packages"), ("FAKE_LOG", "log"), ("FAKE_ASKED", "asked.json")):
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.setenv(VLLM.variable, sys.executable)
    return tmp_path


def compared(load: Arrivals, goals: dict[str, float] | None = None, pairs: int = 2) -> Report:
    server: Any = Scripted()
    with VLLMClient(None) as client:
        return run(server, client, REQUESTS, [load], command="c", goals=goals or {}, pairs=pairs, seed=0)


def test_the_order_changes_from_pair_to_pair(fake: Path) -> None:
    compared(Arrivals(max_concurrency=2))
    ours = "o" * (WARM_UP + len(REQUESTS))
    assert (fake / "log").read_text() == "v" + ours + ours + "v" + "v" + ours  # the first of each is not counted


def test_both_are_asked_for_the_same(fake: Path) -> None:
    compared(Arrivals(max_concurrency=2), {"ttft": 200.0})
    asked = (fake / "asked.json").read_text(encoding="utf-8")
    assert '"goodput": ["ttft:200"]' in asked
    assert '"model": "served"' in asked
    assert asked.count('"output_tokens"') == len(REQUESTS)
    assert '{"prompt": "a cat", "output_tokens": 3}' in asked


def test_a_ratio_is_of_their_client_over_ours(fake: Path) -> None:
    report = compared(Arrivals(max_concurrency=2), {"ttft": 200.0}, pairs=3)
    rows = {row["metric"]: row for row in report.rows}
    assert rows["ttft_mean_ms"]["ours"] == pytest.approx(100)
    assert rows["ttft_mean_ms"]["ratio"] == pytest.approx(0.5)
    assert (rows["ttft_p99_ms"]["again_low"], rows["ttft_p99_ms"]["again_high"]) == (1, 1)
    assert rows["tpot_p50_ms"]["ours"] == pytest.approx(100)  # two of the three have one token after the first
    assert rows["goodput_per_s"]["ours"] > 0
    assert rows["goodput_per_s"]["ratio"] is None  # theirs counted none
    assert report.samples[0]["vllm"] == [10.0] * 3


def test_noise_is_between_neighbouring_loads_of_one_client() -> None:
    row = compare([10.0, 20.0, 30.0], [20.0, 10.0, 90.0])
    assert row["ratio"] == 2.0  # of 2, 0.5 and 3
    # ours, vLLM's | vLLM's, ours | ours, vLLM's: 20 -> 10 of vLLM's, then 20 -> 30 of ours
    assert (row["again_low"], row["again_high"]) == (0.5, 1.5)
    assert row["verdict"] == "too few rounds"


@pytest.mark.parametrize("burstiness", [1.0, 0.25])
def test_the_moments_are_those_that_vllm_draws(burstiness: float) -> None:
    np.random.seed(7)
    gaps = [np.random.gamma(shape=burstiness, scale=1 / (4 * burstiness)) for _ in range(9)]
    ours = VLLMArrivals(4.0, burstiness).times(9, seed=7)
    assert ours[-1] == pytest.approx(9 / 4)
    assert ours == pytest.approx([sum(gaps[: n + 1]) * (9 / 4) / sum(gaps) for n in range(9)])


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("fails", "vLLM's client: refused"),
        ("short", "vLLM's client got 6 tokens, and 7 were asked for"),
        ("exits", "vLLM's client failed: SystemExit: no such tokenizer"),
    ],
)
def test_clients_that_were_not_answered_alike_are_not_compared(
    way: str, message: str, fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WAY", way)
    with pytest.raises(RuntimeError, match=message):
        compared(Arrivals(max_concurrency=2))


def test_loads_that_came_at_other_moments_are_not_compared(fake: Path) -> None:
    with pytest.raises(RuntimeError, match="sent at other moments than ours would"):
        compared(Arrivals(request_rate=1000.0))  # the stand-in sends every 3 s


@pytest.mark.parametrize("lacking", ["pandas.py", "vllm/benchmarks/serve.py"])
def test_what_is_not_installed_is_named_with_the_way_to_it(lacking: str, fake: Path) -> None:
    (fake / "packages" / lacking).write_text("raise ModuleNotFoundError('not here')")
    with pytest.raises(ValueError, match=r"^peer_python must be able to import vllm and pandas, .*not here; .*pip "):
        compared(Arrivals(max_concurrency=2))


def test_a_file_of_prompts_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve-peer", "--url", "http://127.0.0.1:1"]) == 2
    assert "dataset must be given: both clients send one file's prompts" in capsys.readouterr().err
