"""Benchmarks of M4: what a step and a workload cost at least, by hand, and the shape of what is written. Never how long
anything took."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from folovllm.bench import contestant, decode
from folovllm.bench.contestant import FoloVLLM
from folovllm.bench.probe import Probe, exceeds_caches
from folovllm.bench.report import Report
from folovllm.bench.roofline import LayerProbe, ModelCost, largest_layer
from folovllm.bench.workload import BenchModel, bench_model, shape_config
from folovllm.layers.linear import Linear
from tests.bench.support import bench_report, refusal
from tests.helpers import make_hf_folder, tiny_hf_config
from workshop.bench import run_preset
from workshop.bench.presets import PRESETS
from workshop.bench.run_cost import RunCost

pytestmark = pytest.mark.slow
TINY = "qwen3-tiny"
CPU = torch.device("cpu")


# The published workload.


def test_nano_vllms_workload_is_the_published_one() -> None:
    prompts, outputs = PRESETS["nano-vllm"].draw()
    assert sum(outputs) == 133_966
    assert sum(map(len, prompts)) == 142_827
    assert len(prompts) == len(outputs) == 256
    assert (min(outputs) >= 100, max(outputs)) == (True, 1024)
    assert all(0 <= token <= 10_000 for prompt in prompts for token in prompt)


def test_its_floor_on_an_h200_is_under_four_seconds() -> None:
    prompts, outputs = PRESETS["nano-vllm"].draw()
    cost = ModelCost.of(shape_config("qwen3-0.6b"), torch.bfloat16)
    run = RunCost.of(cost, [len(prompt) for prompt in prompts], outputs)
    assert cost.kv_token_bytes == 114_688
    assert round(run.kv_token_reads / 1e6) == 121
    assert run.steps == 1024
    assert run.kv_bytes / 1e12 == pytest.approx(13.9, abs=0.05)
    assert run.weight_bytes / 1e12 == pytest.approx(1.2, abs=0.05)
    assert run.prefill_flops / 1e15 == pytest.approx(0.14, abs=0.005)
    assert run.floor_seconds(4.3e12, 790e12) == pytest.approx(3.7, abs=0.05)


def test_fewer_and_shorter_sequences_may_be_asked_for() -> None:
    few = replace(PRESETS["nano-vllm"], num_requests=3, longest_prompt=40, longest_output=120)
    prompts, outputs = few.draw()
    assert [len(prompt) for prompt in prompts] == [40, 40, 40]  # the shortest is as long as the longest
    assert all(100 <= output <= 120 for output in outputs)


def test_preset_report(tmp_path: Path) -> None:
    argv = ["preset", "nano-vllm", "--shape", TINY, "--dtype", "float32", "--num-prompts", "3",
            "--input-len", "20", "--output-len", "6", "--rounds", "2", "--peer", "hf"]  # fmt: skip
    data = bench_report(argv, tmp_path / "preset-x.json")
    ours, hf = data["rows"]
    assert (ours["engine"], hf["engine"]) == ("folovllm", "hf")
    assert (ours["requests"], ours["prompt_tokens"], ours["output_tokens"]) == (3, 60, 18)
    assert ours["output_tokens_per_s"] == pytest.approx(18 / ours["seconds"])
    assert hf["speedup"] == pytest.approx(hf["seconds"] / ours["seconds"])
    assert (ours["running_seqs"], hf["running_seqs"]) == (3, None)
    assert ours["share"] is None  # weights of half a megabyte never leave the caches
    # Three requests, five decode steps each, over contexts of 21 to 25 tokens.
    assert data["details"]["kv_token_reads"] == 3 * (21 + 22 + 23 + 24 + 25)
    assert data["details"]["output_lengths"] == [6, 6, 6]
    assert any("Temperature 0.6" in note and "max_model_len 2048" in note for note in data["notes"])


def test_every_token_is_drawn_at_the_presets_temperature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    original = contestant.SamplingParams
    monkeypatch.setattr(contestant, "SamplingParams", lambda **given: asked.append(given) or original(**given))
    argv = ["preset", "nano-vllm", "--shape", TINY, "--num-requests", "2", "--input-len", "4",
            "--output-len", "3", "--rounds", "1"]  # fmt: skip
    bench_report(argv, tmp_path / "preset-x.json")
    assert {(given["temperature"], given["ignore_eos"]) for given in asked} == {(0.6, True)}


def test_no_round_meets_the_prompts_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a cache of prefixes would have computed them before."""
    seen: list[list[list[int]]] = []
    original = contestant.FoloVLLM.run
    monkeypatch.setattr(contestant.FoloVLLM, "run", lambda *args: seen.append(args[1]) or original(*args))
    argv = ["preset", "nano-vllm", "--shape", TINY, "--num-requests", "2", "--input-len", "9",
            "--output-len", "2", "--rounds", "2"]  # fmt: skip
    bench_report(argv, tmp_path / "preset-x.json")
    few = replace(PRESETS["nano-vllm"], num_requests=2, longest_prompt=9, longest_output=2)
    assert len(seen) == 3  # the warm-up, and two rounds, the first of which is as it was drawn
    assert seen[1] == run_preset.shifted(few.draw()[0], 0, 512)
    firsts = [tuple(prompt) for prompts in seen for prompt in prompts]
    assert len(set(firsts)) == len(firsts)


# What a step costs.


def test_a_models_cost_by_hand() -> None:
    hidden, vocab, layers = 64, 256, 2
    cost = ModelCost.of(tiny_hf_config("qwen3", tie_word_embeddings=True), torch.bfloat16)
    # Per layer: qkv (4 + 2 * 2) heads of 16, o, and the three of the MLP.
    matrices = 8 * 16 * hidden + hidden * hidden + 3 * 96 * hidden
    assert cost.body_flops == 2 * layers * matrices
    assert cost.head_flops == 2 * vocab * hidden
    assert cost.kv_token_bytes == 2 * layers * 2 * 16 * 2
    assert cost.pair_flops == layers * 4 * (2 * 16 + 2 * 16)  # 4 query heads; q·k and p·v, a product and a sum each


def test_a_tied_head_computes_as_an_untied_one_does() -> None:
    tied, untied = (
        ModelCost.of(tiny_hf_config("qwen3", tie_word_embeddings=tie), torch.float32) for tie in (True, False)
    )
    assert (tied.body_flops, tied.head_flops) == (untied.body_flops, untied.head_flops)


COST = ModelCost(weight_bytes=1000, kv_token_bytes=10, body_flops=50, head_flops=6, pair_flops=2)


def test_a_step_reads_the_weights_once_and_every_context() -> None:
    assert COST.decode_step([5, 7]) == (1000 + 12 * 10, 2 * 56 + 12 * 2)
    assert COST.decode_step([5])[0] - COST.decode_step([4])[0] == 10


def test_a_runs_cost_is_that_of_its_steps() -> None:
    """Prompts of 3 and 2 tokens, outputs of 4 and 2: decode steps over 4, 5, 6 and over 3 tokens."""
    run = RunCost.of(COST, [3, 2], [4, 2])
    assert run.kv_token_reads == 4 + 5 + 6 + 3
    assert (run.kv_bytes, run.steps, run.weight_bytes) == (180, 4, 4000)
    assert run.prefill_flops == 5 * 50 + 2 * 6 + (1 + 2 + 3 + 1 + 2) * 2  # each token over those up to itself
    assert run.floor_seconds(bandwidth=4180, flops_per_s=280) == pytest.approx(2.0)


def test_weights_that_fit_caches_have_no_share() -> None:
    assert not exceeds_caches(COST.weight_bytes, CPU)
    assert exceeds_caches(2**30, CPU)
    assert exceeds_caches(COST.weight_bytes, torch.device("cuda"))


def made_layer(dtype: torch.dtype) -> Linear:
    layer = Linear(8, 6)
    layer.weight.data = torch.ones(6, 8, dtype=dtype)
    return layer


def test_the_layer_that_is_asked_is_the_largest_but_for_the_one_of_the_logits(tmp_path: Path) -> None:
    engine = FoloVLLM(BenchModel("tiny", str(make_hf_folder(tmp_path)), "auto"), "float32", "cpu", 16).engine
    layer = largest_layer(engine)
    assert (layer.in_features, layer.out_features) == (64, 2 * 96)  # gate and up; the logits have 256


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_product_of_the_layers_is_measured_too_and_the_faster_one_counts(dtype: torch.dtype) -> None:
    found = LayerProbe(CPU, dtype, made_layer(dtype))
    found.measure(warm_up=True)
    assert found.product == []
    found.measure()
    (product,) = found.product
    assert product > 0
    found.matmul = [product / 2]
    assert found.flops_per_s == product


def test_the_floor_is_the_longer_of_bytes_and_operations() -> None:
    found = LayerProbe(CPU, torch.float32, made_layer(torch.float32))
    found.read, found.copy, found.matmul, found.product = [100.0], [200.0, 400.0, 300.0], [10.0], [9.0, 5.0, 8.0]
    assert (found.bandwidth, found.flops_per_s) == (300.0, 10.0)
    large = replace(COST, weight_bytes=2**30)
    row = decode._row("float32", 1, 4, [5], [1.0, 3.0, 2.0], large, found)
    num_bytes, flops = large.decode_step([5])
    assert row["memory_ms"] == pytest.approx(num_bytes / 300 * 1e3)
    assert row["compute_ms"] == pytest.approx(flops / 10 * 1e3)
    assert row["floor_ms"] == max(row["memory_ms"], row["compute_ms"])
    assert row["share"] == pytest.approx(row["floor_ms"] / 2000)
    found.matmul = found.product = [1e-6]
    assert decode._row("float32", 1, 4, [5], [1.0], large, found)["floor_ms"] == pytest.approx(flops / 1e-6 * 1e3)


def test_a_probe_measures_three_rates() -> None:
    found = Probe(CPU, torch.bfloat16)
    found.measure(warm_up=True)
    assert not found.read
    found.measure()
    assert min(found.read[0], found.copy[0], found.matmul[0]) > 0
    assert "matmul" in found.describe()
    assert "bfloat16" in found.describe()


# The report on decode steps.


def test_decode_report(tmp_path: Path) -> None:
    argv = ["decode", "--shape", TINY, "--dtype", "float32", "--batch-sizes", "1", "3", "--context", "6", "--steps",
            "2", "--rounds", "2"]  # fmt: skip
    data = bench_report(argv, tmp_path / "decode-x.json")
    one, three = data["rows"]
    assert [(row["batch"], row["context"], row["steps"]) for row in (one, three)] == [(1, 6, 4), (3, 6, 4)]
    assert three["kv_gb"] == pytest.approx(3 * one["kv_gb"])
    assert three["weights_gb"] == one["weights_gb"]
    assert three["output_tokens_per_s"] == pytest.approx(3e3 / three["step_ms"])
    assert one["share"] is None


def test_the_bytes_of_a_step_are_those_of_the_contexts_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six tokens of prompt; when the measured steps begin there are 6 outputs, when they end 6 + 2 * 2."""
    seen: list[list[int]] = []
    original = decode._row
    monkeypatch.setattr(decode, "_row", lambda *args: seen.append(args[3]) or original(*args))
    with bench_model(None, TINY) as model:
        decode.run(model, command="x", dtype="float32", batch_sizes=[2], context=6, steps=2, rounds=2)
    assert seen == [[6 + (6 + 10) // 2] * 2]


# What is refused.


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["decode", "--batch-sizes", "0"], "batch_sizes must be at least 1, got 0"),
        (["decode", "--context", "0"], "context must be at least 1, got 0"),
        (["preset", "nano-vllm", "--num-prompts", "0"], "num_requests must be at least 1, got 0"),
        (["preset", "nano-vllm", "--output-len", "1"], "output_len must be at least 2, got 1"),
        (["preset", "nano-vllm", "--peer", "gpt"], "peer must be one of "),
        (["preset", "nano-vllm", "--model", "embedded"], "the longest request at most 1024 tokens"),
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal(argv, capsys)


def test_details_are_in_the_json() -> None:
    given = {"columns": ["a"], "rows": [{"a": 1}]}
    assert Report("x", "X", "c", **given).as_dict()["details"] == {}
    assert Report("x", "X", "c", **given, details={"b": 2}).as_dict()["details"] == {"b": 2}


@pytest.mark.parametrize("module", [decode, run_preset])
def test_no_column_is_named_twice(module: Any) -> None:
    assert len(set(module.COLUMNS)) == len(module.COLUMNS)
