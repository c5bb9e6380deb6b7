"""`bench serve` and `serve-load`: how requests arrive, what is counted of them, and what is refused."""

from __future__ import annotations

import asyncio
import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest

from folovllm.bench.arrivals import Arrivals, send
from folovllm.bench.metrics import RequestTimes, load_row, percentile
from folovllm.entrypoints.cli.main import main
from tests.bench.support import report, run
from workshop.bench.presets import PRESETS

SMALL = ["serve-load", "--shape", "qwen3-tiny", "--dtype", "float32"]
# First token after 0.1 s, three more 0.02 s apart, the last two of which came together; and a slow one of two tokens.
FAST = RequestTimes(arrivals=[0.1, 0.12, 0.16], num_tokens=4, e2el=0.16)
SLOW = RequestTimes(arrivals=[0.5, 0.9], num_tokens=2, e2el=0.9)


@pytest.mark.parametrize(("rate", "burstiness"), [(4.0, 1.0), (4.0, 0.25), (100.0, 4.0)])
def test_gaps_have_the_mean_and_the_coefficient_of_variation_of_a_gamma(rate: float, burstiness: float) -> None:
    """Its mean is 1 / rate, and its deviation over that is 1 / sqrt(burstiness)."""
    times = Arrivals(rate, burstiness).times(20_000, seed=1)
    gaps = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    mean = statistics.mean(gaps)
    assert mean == pytest.approx(1 / rate, rel=0.05)
    assert statistics.stdev(gaps) / mean == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_a_closed_loop_has_never_more_under_way_and_keeps_the_order() -> None:
    under_way = most = 0

    async def ask(item: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return item * 10

    answers = asyncio.run(send(range(20), ask, Arrivals(max_concurrency=3)))
    assert (most, answers) == (3, [item * 10 for item in range(20)])


def test_a_load_is_the_sum_of_its_requests() -> None:
    lost = RequestTimes(problem="refused")
    row = load_row([FAST, SLOW, lost], seconds=2.0, goals={"ttft": 100.0, "tpot": 20.1})
    assert (row["answered"], row["failed"]) == (2, 1)
    assert (row["requests_per_s"], row["output_tokens_per_s"]) == (1.0, 3.0)
    assert row["goodput_per_s"] == 0.5  # SLOW's first token comes too late
    assert row["ttft_p99_ms"] == pytest.approx(100 + 0.99 * 400)
    assert row["itl_p50_ms"] == pytest.approx(40)  # of 20, 40 and 400
    assert load_row([FAST, RequestTimes([0.1], 1, 0.1)], 1.0, {})["tpot_p50_ms"] == pytest.approx(20)
    values = [40.0, 10.0, 30.0, 20.0]
    assert percentile(values, 95) == pytest.approx(np.percentile(values, 95))


def test_an_engine_that_runs_out_of_blocks_says_so(tmp_path: Path) -> None:
    """4 sequences that grow to 100 tokens do not fit into 10 blocks of 16."""
    argv = [*SMALL, "--input-len", "20", "--output-len", "80", "--num-requests", "4", "--request-rate", "inf"]
    argv += ["--goodput", "ttft:1e9", "tpot:1e9", "--num-kv-blocks", "10", "--max-model-len", "128"]
    (row,) = report(argv, tmp_path / "x.json")["rows"]
    assert (row["load"], row["answered"], row["failed"]) == ("all at once", 4, 0)
    assert row["preemptions"] > 0
    assert row["goodput_per_s"] == row["requests_per_s"]
    assert 0 < row["ttft_p50_ms"] <= row["ttft_p99_ms"] <= row["e2el_p99_ms"]


def test_a_file_is_a_load_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "Once upon a time", "output_tokens": 3}\n{"prompt": "从前", "output_tokens": 5}')
    argv = ["serve-load", "--model", "embedded", "--dataset-path", str(path), "--request-rate", "inf"]
    assert run([*argv, "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["answered"], round(row["output_tokens_per_s"] * row["seconds"])) == (2, 8)
    path.write_text('{"prompt": "a"}')
    assert run(argv) == 2
    assert "line 1: output_tokens must be given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--burstiness", "0.5"], "burstiness must come with a request_rate"),
        (["--request-rate", "0"], "request_rate must be positive, got 0"),
        (["--goodput", "itl:5"], "goodput must be of ttft:MS"),
        (["--base-url", "127.0.0.1:1"], "base_url must be like"),
        (["--base-url", "http://127.0.0.1:1"], "base_url must be of a server that answers, got 'http://127.0.0.1:1'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("httpx")
    assert main(["bench", "serve", *argv]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--model", "embedded"], ["--num-kv-blocks", "9"], ["--trace", "x"]])
def test_an_engine_s_options_are_refused_where_the_engine_is_a_servers(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve-load", "--base-url", "http://127.0.0.1:1", *argv]) == 2
    name = argv[0].removeprefix("--").replace("-", "_")
    assert f"{name} must not be given with base_url" in capsys.readouterr().err


@pytest.mark.parametrize("name", PRESETS)
def test_a_seed_repeats_a_preset_s_requests_to_the_token(name: str) -> None:
    preset = PRESETS[name]
    prompts, outputs = preset.draw()
    assert (prompts, outputs) == preset.draw()
    assert len(prompts) == len(outputs) == preset.num_requests
    assert max(len(prompt) + output for prompt, output in zip(prompts, outputs, strict=True)) <= preset.max_model_len


def test_nano_vllm_s_workload_is_the_published_one() -> None:
    prompts, outputs = PRESETS["nano-vllm"].draw()
    assert (len(prompts), sum(map(len, prompts)), sum(outputs)) == (256, 142_827, 133_966)


def test_prompts_below_a_prefix_begin_alike_and_a_turn_of_a_chat_begins_with_the_one_before() -> None:
    prompts, _ = PRESETS["shared-prefix"].draw()
    assert [prompt[:512] for prompt in prompts[:4]] == [prompt[:512] for prompt in prompts[4:8]]
    assert len({tuple(prompt[:512]) for prompt in prompts}) == 4
    turns, _ = PRESETS["chat"].draw()
    assert all(later[: len(first)] == first for first, later in zip(turns[:16], turns[16:32], strict=True))
