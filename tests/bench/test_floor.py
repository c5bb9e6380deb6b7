"""The least that a step and a run cost, counted by hand; and what a busy neighbour does to a table."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path

import psutil
import pytest
import torch
from rich.console import Console

from folovllm.bench.neighbours import Neighbours, family_seconds
from folovllm.bench.report import Report
from folovllm.bench.shapes import ModelShape
from folovllm.bench.workload import shape_config
from tests.helpers import tiny_hf_config
from workshop import quantized_shape
from workshop.bench.presets import PRESETS
from workshop.bench.roofline import ModelCost
from workshop.bench.run_preset import RunCost

COST = ModelCost(weight_bytes=1000, kv_token_bytes=10, body_flops=50, head_flops=6, pair_flops=2)


def test_a_models_cost_by_hand() -> None:
    hidden, vocab, layers = 64, 256, 2
    cost = ModelCost.of(tiny_hf_config("qwen3", tie_word_embeddings=True), torch.bfloat16)
    # Per layer: qkv (4 + 2 * 2) heads of 16, o, and the three of the MLP.
    matrices = 8 * 16 * hidden + hidden * hidden + 3 * 96 * hidden
    assert cost.body_flops == 2 * layers * matrices
    assert cost.head_flops == 2 * vocab * hidden
    assert cost.kv_token_bytes == 2 * layers * 2 * 16 * 2
    assert cost.pair_flops == layers * 4 * (2 * 16 + 2 * 16)  # 4 query heads; q·k and p·v, a product and a sum each


def test_a_step_reads_the_weights_once_and_every_context() -> None:
    assert COST.decode_step([5, 7]) == (1000 + 12 * 10, 2 * 56 + 12 * 2)


def test_a_runs_cost_is_that_of_its_steps() -> None:
    """Prompts of 3 and 2 tokens, outputs of 4 and 2: decode steps over 4, 5, 6 and over 3 tokens."""
    run = RunCost.of(COST, [3, 2], [4, 2])
    assert run.kv_token_reads == 4 + 5 + 6 + 3
    assert (run.kv_bytes, run.steps, run.weight_bytes) == (180, 4, 4000)
    assert run.prefill_flops == 5 * 50 + 2 * 6 + (1 + 2 + 3 + 1 + 2) * 2  # each token over those up to itself
    assert run.floor_seconds(bandwidth=4180, flops_per_s=280) == pytest.approx(2.0)


def test_the_published_workloads_floor_on_an_h200_is_under_four_seconds() -> None:
    prompts, outputs = PRESETS["nano-vllm"].draw()
    cost = ModelCost.of(shape_config("qwen3-0.6b"), torch.bfloat16)
    run = RunCost.of(cost, [len(prompt) for prompt in prompts], outputs)
    assert run.floor_seconds(4.3e12, 790e12) == pytest.approx(3.7, abs=0.05)


def test_a_quantised_folder_is_refused_where_its_bytes_would_be_reckoned(tmp_path: Path) -> None:
    quantized_shape.write("qwen3-tiny", "w4a16", tmp_path)
    with pytest.raises(ValueError, match="quantization_config"):
        ModelShape.of(str(tmp_path))
    assert ModelShape.of(str(tmp_path), quantized=True).layers == 2


def test_a_busy_neighbour_is_said_in_the_table_and_a_quiet_machine_is_not() -> None:
    def shown(load: dict[str, object] | None) -> str:
        report = Report("x", "X", "c", columns=["a"], rows=[{"a": 1}], other_load=load)
        text = StringIO()
        report.show(Console(width=200, file=text))
        return text.getvalue()

    assert "other processes used 1.2 of 4 cores (30%)" in shown({"share": 0.3, "cores": 4, "is_busy": True})
    assert "neighbours" not in shown({"share": 0.01, "cores": 4, "is_busy": False})
    assert "neighbours" not in shown(None)
    load = Neighbours().look()
    assert load["share"] >= 0
    assert load["is_busy"] == (load["share"] > 0.03)


def test_a_child_s_time_is_ours_while_it_runs_and_after() -> None:
    burn, here = "print(flush=True)\nwhile True: pass", psutil.Process()
    before = family_seconds(here)
    with subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        child = psutil.Process(process.pid)
        start = family_seconds(child)
        while (used := family_seconds(child) - start) < 0.2:
            sum(range(1000))
        assert family_seconds(here) - before >= used
        process.kill()
    assert family_seconds(here) - before >= used  # waited for: it is in our own time by now


def test_a_model_with_experts_costs_what_a_step_reads_and_not_what_is_held() -> None:
    """8 experts of 3 * 24 * 64 weights in each of 2 layers, 3 a token; the router has 8 rows."""
    shape, expert = ModelShape.of_config("here", tiny_hf_config("qwen3_moe").to_dict()), 3 * 24 * 64
    other = 2 * (8 * 16 * 64 + 64 * 64 + 8 * 64)
    assert (shape.body, shape.active) == (other + 16 * expert, other + 6 * expert)
    assert shape.read(1) == other + 6 * expert
    assert shape.read(2) == other + round(16 * expert * (1 - (5 / 8) ** 2))
    cost = ModelCost.of(tiny_hf_config("qwen3_moe"), torch.float32)
    assert cost.body_flops == 2 * shape.active
    for tokens in (1, 2, 64):
        assert cost.weights_read(tokens) == pytest.approx(4 * (shape.read(tokens) + shape.head), abs=8)
    mixtral = ModelShape.of_config("here", tiny_hf_config("mixtral").to_dict())
    assert mixtral.body - mixtral.active == 2 * 2 * 3 * 96 * 64
