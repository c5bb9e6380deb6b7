"""Benchmarks: their arithmetic, by hand, and the shape of what they write. Never how long anything took."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from transformers import AutoModelForCausalLM

from folovllm.bench import latency, throughput
from folovllm.bench.contestant import FoloVLLM, Run, Step
from folovllm.bench.peers import registry
from folovllm.bench.peers.registry import InBatches
from folovllm.bench.report import Report, format_number
from folovllm.bench.roofline import ModelCost
from folovllm.bench.workload import BenchModel, bench_model, random_prompts, shape_config
from folovllm.entrypoints.cli.main import main
from folovllm.utils.machine import cpu_features, hardware, versions
from tests.bench import support
from tests.helpers import make_hf_folder, tiny_hf_config
from workshop.bench import load, load_worker

TINY = "qwen3-tiny"


# Arithmetic.


def test_run_separates_prefill_from_decode() -> None:
    run = Run([Step(3.0, 1, True), Step(0.5, 1, False), Step(0.25, 1, False)])
    assert (run.prefill_seconds, run.decode_seconds, run.seconds) == (3.0, 0.75, 3.75)
    assert (run.tokens, run.decode_tokens) == (3, 2)


def test_percentile_lies_between_its_neighbours() -> None:
    values = [40.0, 10.0, 30.0, 20.0]
    assert [latency.percentile(values, p) for p in (0, 50, 75, 100)] == [10.0, 25.0, 32.5, 40.0]
    assert latency.percentile([7.0], 99) == 7.0


def test_speedup_and_roofline_by_hand() -> None:
    ours, peer = latency.Samples([0.5], [0.1], [0.1]), latency.Samples([1.0], [0.15], [0.15])
    samples = {"folovllm": ours, "hf": peer}
    # 1 GB at 20 GB/s is 50 ms, half of the 100 ms that a token took.
    row = latency._row("folovllm", samples, bandwidth=20e9, weight_bytes=10**9, from_memory=True)
    assert row["roofline"] == pytest.approx(0.5)
    assert (row["decode_speedup"], row["prefill_speedup"]) == (pytest.approx(1.5), pytest.approx(2.0))
    assert row["decode_tokens_per_s"] == pytest.approx(10)
    assert latency._row("hf", samples, 20e9, 10**9, from_memory=True)["decode_speedup"] is None
    # A model that fits in caches has no roofline to speak of.
    assert latency._row("folovllm", samples, 20e9, 10**6, from_memory=False)["roofline"] is None


def test_a_decode_step_reads_a_tied_embedding_once_and_of_an_untied_one_a_row() -> None:
    hidden, vocab = 64, 256
    tied = ModelCost.of(tiny_hf_config("qwen3", tie_word_embeddings=True), torch.bfloat16).weight_bytes
    untied = ModelCost.of(tiny_hf_config("qwen3", tie_word_embeddings=False), torch.bfloat16).weight_bytes
    assert tied == untied
    # By hand: per layer qkv (4 + 2 * 2) * 16 * 64, o 64 * 64, gate, up and down 3 * 96 * 64; norms are left out.
    per_layer = 8 * 16 * hidden + hidden * hidden + 3 * 96 * hidden
    assert tied == 2 * (2 * per_layer + vocab * hidden)


def test_qwen3_shape_has_the_real_models_size() -> None:
    weights = 596_049_920 - 65_536  # but for norms: 28 layers of 2 * 1024 + 2 * 128, and the last of 1024
    assert ModelCost.of(shape_config("qwen3-0.6b"), torch.bfloat16).weight_bytes == 2 * weights


def test_random_prompts_repeat_with_their_seed_and_differ_with_another() -> None:
    first = random_prompts(3, 5, 100, seed=1)
    assert first == random_prompts(3, 5, 100, seed=1) != random_prompts(3, 5, 100, seed=2)
    assert [len(prompt) for prompt in first] == [5, 5, 5]


# Contestants.


def test_both_contestants_generate_the_same_number_of_tokens_from_the_same_weights(tmp_path: Path) -> None:
    folder = make_hf_folder(tmp_path)
    model = BenchModel("tiny", str(folder), "auto")
    hf = support.Local(support.hf_engine(model))
    stored = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    assert all(torch.equal(tensor, stored[name]) for name, tensor in hf.engine.model.state_dict().items())
    prompts = random_prompts(3, 6, 256)
    ours = FoloVLLM(model, "float32", "cpu", 16).run(prompts, [4, 4, 4])
    theirs = InBatches(hf, batch_size=1).run(prompts, [4, 4, 4])
    for run in (ours, theirs):
        assert (run.tokens, run.decode_tokens) == (12, 9)
        assert run[0].prefill
    # The peer takes one after the other: a step for the prompt, and three more.
    assert [step.prefill for step in theirs] == [True, False, False, False] * 3
    batched = InBatches(hf, batch_size=2).run(prompts, [4, 4, 4])
    assert [step.tokens for step in batched] == [2, 2, 2, 2, 1, 1, 1, 1]


def test_end_of_text_does_not_end_a_run(tmp_path: Path) -> None:
    every_id = list(range(256))  # whatever is generated is an EOS
    folder = make_hf_folder(tmp_path, eos_token_id=every_id)
    model = BenchModel("tiny", str(folder), "auto")
    hf = support.Local(support.hf_engine(model))
    for contestant in (FoloVLLM(model, "float32", "cpu", 16), InBatches(hf, batch_size=1)):
        assert contestant.run([[1, 2, 3]], [5]).tokens == 5


# Reports.


def check_schema(data: dict[str, Any], name: str) -> None:
    """What the documentation's tables are made from."""
    assert data["name"] == name
    assert data["command"].startswith(("folovllm bench ", "python -m workshop.bench "))
    assert {"python", "torch", "transformers", "folovllm"} <= set(data["versions"])
    assert data["hardware"]["threads"] == torch.get_num_threads()
    assert len(data["date"]) == len("2026-01-31")
    assert data["rows"]
    for row in data["rows"]:
        assert list(row) == data["columns"]
        for value in row.values():
            assert isinstance(value, str | int | float | None)
            assert not isinstance(value, float) or math.isfinite(value)


def bench(argv: list[str], path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    with mock.patch.dict(registry.PEERS, {"hf": support.here}):
        assert support.run([*argv, "--json", str(path)]) == 0
    data = json.loads(path.read_text())
    check_schema(data, path.stem)
    assert data["command"].endswith(f"--json {path}")
    return data, capsys.readouterr().out


def test_latency_report(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # in a pipe nothing is wrapped
    argv = ["latency", "--shape", TINY, "--dtype", "bfloat16", "--peer", "hf", "--rounds", "2", "--input-len", "6",
            "--output-len", "3"]  # fmt: skip
    data, out = bench(argv, tmp_path / "latency-x.json", capsys)
    ours, theirs = data["rows"]
    assert (ours["engine"], theirs["engine"]) == ("folovllm", "hf")
    assert (ours["prompt_tokens"], ours["output_tokens"], ours["dtype"]) == (6, 3, "bfloat16")
    assert ours["decode_speedup"] == pytest.approx(theirs["tpot_ms"] / ours["tpot_ms"])
    assert ours["itl_p50_ms"] <= ours["itl_p95_ms"] <= ours["itl_p99_ms"]
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "decode speedup" in out


def test_throughput_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["throughput", "--shape", TINY, "--dtype", "float32", "--peer", "hf", "--peer-batch-size", "2", "--rounds",
            "1", "--num-requests", "3", "--input-len", "6", "--output-len", "3"]  # fmt: skip
    data, _ = bench(argv, tmp_path / "throughput-x.json", capsys)
    ours, one, two = data["rows"]
    assert [row["batch"] for row in data["rows"]] == [None, 1, 2]
    assert one["speedup"] == pytest.approx(one["seconds"] / ours["seconds"])
    assert two["output_tokens_per_s"] == pytest.approx(9 / two["seconds"])


def test_sampler_report(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from workshop.bench import sampler

    original = sampler.run
    monkeypatch.setattr(sampler, "run", lambda *args, **kwargs: original(*args, **kwargs, seconds_per_case=0.0))
    argv = ["sampler", "--rounds", "1", "--batch-sizes", "1", "2", "--vocab-sizes", "2048"]
    data, _ = bench(argv, tmp_path / "sampler-x.json", capsys)
    assert {row["batch"] for row in data["rows"]} == {1, 2}
    assert {row["vocab"] for row in data["rows"]} == {2048}


def test_json_dash_prints_the_result_and_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["latency", "--shape", TINY, "--rounds", "1", "--input-len", "2", "--output-len", "2", "--json", "-"]
    assert main(["bench", *argv]) == 0
    data = json.loads(capsys.readouterr().out)
    check_schema(data, "latency")
    assert [row["decode_speedup"] for row in data["rows"]] == [None]


def test_threads_are_set(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    try:
        argv = ["bench", "latency", "--shape", TINY, "--rounds", "1", "--input-len", "2", "--output-len", "2"]
        assert main([*argv, "--threads", "2", "--json", "-"]) == 0
        assert json.loads(capsys.readouterr().out)["hardware"]["threads"] == 2
        assert os.environ["OMP_NUM_THREADS"] == "2"  # so that the number holds for every model, and in other processes
    finally:
        torch.set_num_threads(before)


def test_bandwidth_probe_and_hardware_say_something() -> None:
    assert hardware()["cores"] >= 1
    assert hardware()["memory_gib"] > 0
    assert versions()["torch"] == torch.__version__
    assert all(isinstance(feature, str) for feature in cpu_features())


def test_report_refuses_a_row_that_lacks_a_column() -> None:
    with pytest.raises(ValueError, match=r"^rows must have exactly the columns \['a', 'b'\], got \['a'\]"):
        Report("x", "X", "folovllm bench x", ["a", "b"], [{"a": 1}])


def test_numbers_have_about_four_digits() -> None:
    values = [None, 12345, 12345.6, 234.56, 1.234, 0.56789, "text"]
    assert [format_number(value) for value in values] == ["–", "12,345", "12,346", "234.6", "1.23", "0.568", "text"]


# Loading.


def test_written_checkpoint_is_whole(tmp_path: Path) -> None:
    load.write_checkpoint(tmp_path, TINY)
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert model.dtype == torch.bfloat16


def test_full_disk_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(load.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(OSError, match="set TMPDIR to a folder on a larger disk"):
        load.write_checkpoint(tmp_path, TINY)
    assert list(tmp_path.iterdir()) == []


def test_load_report(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "CASES", {"folovllm": ("float32",), "hf": ("bfloat16",)})
    # In this process, to save the imports; what it says of memory is then meaningless, the rest is not.
    here = lambda folder, engine, dtype, tree: load_worker.main(engine, folder, dtype, "1")  # noqa: E731
    monkeypatch.setattr(load, "load_once", here)
    argv = ["load", "--shape", TINY, "--rounds", "1", "--peer", "hf"]
    data, _ = bench(argv, tmp_path / "load-x.json", capsys)
    ours, theirs = data["rows"]
    assert [row["checkpoint"] for row in data["rows"]] == ["bfloat16", "bfloat16"]
    assert (ours["dtype"], theirs["dtype"]) == ("float32", "bfloat16")
    assert ours["weights_gb"] == 2 * theirs["weights_gb"] == pytest.approx(4 * 114_816 / 1e9, rel=0.2)
    assert all(0 < row["load_s"] <= row["first_token_s"] for row in data["rows"])


@pytest.mark.slow
def test_a_fresh_process_loads_and_tells_its_peak(tmp_path: Path) -> None:
    load.write_checkpoint(tmp_path, TINY)
    row = load.load_once(str(tmp_path), "folovllm", "bfloat16")
    assert 0 < row["load_s"] < row["first_token_s"]
    assert row["peak_bytes"] > row["weight_bytes"]


@pytest.mark.slow
def test_a_milestones_tree_beside_hugging_face(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["milestone", "m1", "--model", "embedded", "--dtype", "float32", "--input-len", "8", "--output-len", "3"]
    data, _ = bench([*argv, "--rounds", "1"], tmp_path / "milestone-x.json", capsys)
    ours, theirs = data["rows"]
    assert (ours["engine"], theirs["engine"]) == ("m1", "hf")
    assert ours["decode_speedup"] == pytest.approx(theirs["tpot_ms"] / ours["tpot_ms"])
    assert ours["roofline"] is None  # its weights stay in caches


def test_a_loader_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="Traceback ...\nValueError: no such tensor\n")
    monkeypatch.setattr(load.subprocess, "run", lambda *args, **kwargs: failed)
    with pytest.raises(ValueError, match="loading with hf failed: ValueError: no such tensor"):
        load.load_once("/a/folder", "hf", "float32")


def test_shape_folder_is_gone_afterwards() -> None:
    with bench_model(None, TINY) as model:
        assert (Path(model.path) / "config.json").is_file()
        assert model.load_format == "dummy"
    assert not Path(model.path).exists()
    with bench_model("embedded", TINY) as model:
        assert (model.path, model.load_format) == ("embedded", "auto")


@pytest.mark.parametrize("module", [latency, throughput])
def test_default_columns_are_those_of_the_rows(module: Any) -> None:
    assert len(set(module.COLUMNS)) == len(module.COLUMNS)
