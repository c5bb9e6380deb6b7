"""What a step costs, by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from folovllm.bench.shapes import ModelShape
from folovllm.bench.workload import shape_config
from folovllm.entrypoints.cli.main import main
from folovllm.simulator.cost_model import Roofline
from folovllm.simulator.devices import Device, find_device

ROUND = Device("round", 1e12, 100e12, 80e9, 100e9, 6e-6, 20e-6, "cuda", 1.0, 1.0, 0.0, 0.0)
# One layer: q, k, v, o of 4 * 4 each, three of 4 * 8; a head of 10 * 4.
SMALL = ModelShape("small", 1, 4, 2, 2, 2, 8, 10, tied=False, max_model_len=64)

SMALL_CONFIG = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100
}  # fmt: skip


def test_the_weights_of_a_small_model_are_counted_on_paper():
    assert SMALL.body == 4 * 16 + 3 * 32 == 160
    assert SMALL.head == 40
    assert SMALL.parameters == 160 + 2 * 40
    assert SMALL.kv_per_token == 2 * 2 * 2


def test_llama_has_the_parameters_in_its_name():
    assert ModelShape.of("llama-3.1-8b").parameters == pytest.approx(8.03e9, rel=0.001)
    assert ModelShape.of("Llama-3.1-70B").parameters == pytest.approx(70.55e9, rel=0.001)
    assert ModelShape.of("llama-3.1-8b").kv_per_token * 2 == 131072


@pytest.mark.parametrize("name", ["qwen3-tiny", "qwen3-mini", "qwen3-0.6b"])
def test_a_shape_agrees_with_the_model_that_is_built_from_it(name: str):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape_config(name))
    matrices = {name: weight.numel() for name, weight in model.named_parameters() if weight.dim() == 2}
    shape = ModelShape.of(name)
    assert matrices.pop("model.embed_tokens.weight") == shape.head  # which they share
    assert sum(matrices.values()) == shape.body
    keys = [weight for name, weight in model.named_parameters() if "k_proj" in name or "v_proj" in name]
    assert sum(len(weight) for weight in keys) == shape.kv_per_token


def test_a_small_batch_waits_for_bytes_and_a_large_one_for_arithmetic():
    """Layers: 320 bytes in 3.2e-10 s; 320 operations a token in 3.2e-12: even at 100 tokens."""
    cost = Roofline(ROUND, SMALL)
    head = 80 / 1e12
    assert cost.seconds(1, 1, 0, 0) == pytest.approx(320 / 1e12 + head)
    assert cost.seconds(100, 1, 0, 0) == pytest.approx(320 / 1e12 + head)
    assert cost.seconds(200, 1, 0, 0) == pytest.approx(640 / 1e12 + head)


def test_attention_takes_the_longer_of_keys_and_pairs():
    """16 bytes for a token's keys and values; 4 * 2 heads * 2 = 16 operations a pair."""
    cost = Roofline(ROUND, SMALL)
    alone = cost.seconds(1, 1, 0, 0)
    assert cost.seconds(1, 1, 1000, 1000) - alone == pytest.approx(16000 / 1e12)
    assert cost.seconds(1, 1, 1000, 1_000_000) - alone == pytest.approx(16e6 / 100e12)


def test_two_devices_halve_the_reading_and_add_their_sums():
    """Two sums a layer and one of the embedding; each moves, for a token, 4 numbers of 2 bytes over the link."""
    one, two = Roofline(ROUND, SMALL), Roofline(ROUND, SMALL, devices=2)
    sums = 3 * (6e-6 + 8 / 100e9)
    assert two.seconds(1, 1, 0, 0) == pytest.approx(one.seconds(1, 1, 0, 0) / 2 + sums)


def test_few_bytes_are_summed_in_one_shot_and_many_in_a_ring():
    """Four devices at 100 GB/s: 6 us and 3 vectors, or 20 us and 1.5. They are even at 14 us * 100 GB/s / 1.5."""
    assert ROUND.all_reduce_seconds(100_000, 4) == pytest.approx(6e-6 + 3e-6)
    assert ROUND.all_reduce_seconds(1_000_000, 4) == pytest.approx(20e-6 + 15e-6)
    even = 14e-6 * 100e9 / 1.5
    assert ROUND.all_reduce_seconds(even, 4) == pytest.approx(6e-6 + 28e-6) == pytest.approx(20e-6 + 14e-6)
    assert ROUND.all_reduce_seconds(1e9, 1) == 0


def test_a_sum_on_h100s_takes_what_vllm_measured():
    """0.5 MiB took 7 us on two and 10 on four, in one shot; 4 MiB took 38 and 39 on four (pulls 24111, 24532)."""
    h100 = find_device("h100")
    found = [1e6 * h100.all_reduce_seconds(size * 2**20, n) for size, n in ((0.5, 2), (0.5, 4), (4, 4))]
    assert found == pytest.approx([7, 10, 38], rel=0.15)


def test_overheads_are_of_a_step_and_of_each_sequence():
    device, plain = (replace(find_device("h100"), step_overhead=a, seq_overhead=b) for a, b in ((0.01, 0.001), (0, 0)))
    shape = ModelShape.of("qwen3-tiny")
    extra = Roofline(device, shape).seconds(5, 3, 9, 9) - Roofline(plain, shape).seconds(5, 3, 9, 9)
    assert extra == pytest.approx(0.013)


def test_blocks_are_what_fits_beside_the_weights():
    """480 bytes of weights; 16 * 16 bytes a block; half of 10,000 bytes."""
    device = Device("tiny", 1e12, 1e12, 10_000, 1e9)
    assert Roofline(device, SMALL).num_blocks(16, 0.5) == (5000 - 480) // 256


def test_weights_that_do_not_fit_are_an_error_with_a_way_out():
    with pytest.raises(ValueError, match=r"whose weights take 141 GB, got 1 x RTX 4090 .*tensor_parallel_size"):
        Roofline(find_device("rtx-4090"), ModelShape.of("llama-3.1-70b")).num_blocks(16)


def test_any_config_json_is_a_model(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL_CONFIG))
    shape = ModelShape.of(str(tmp_path))
    assert (shape.kv_heads, shape.head_dim, shape.tied) == (4, 16, False)
    assert main(["bench", "simulate", "--num-requests", "2", "--model", str(tmp_path / "config.json")]) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ('{"a":' * 50_000, "nested too deeply"),
        ('{"text_config": 1}', "text_config must be an object"),
        (json.dumps({**SMALL_CONFIG, "head_dim": "64"}), "head_dim of .* must be an integer"),
        (json.dumps({**SMALL_CONFIG, "vocab_size": 10**400}), "vocab_size of .* must be at most"),
        ('{"n_routed_experts": 8}', "n_routed_experts=8, which is not modelled"),
        ('{"hidden_size": 64}', "must have num_attention_heads"),
        ('{"num_attention_heads": 0}', "num_attention_heads of .* must be positive"),
    ],
)
def test_a_config_that_cannot_be_modelled_is_named(tmp_path: Path, text: str, message: str):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        ModelShape.of(str(tmp_path))


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: ModelShape.of("llama-3.1-8"), "did you mean 'llama-3.1-8b'"),
        (lambda: find_device("tpu"), "device must be one of h200, .* got 'tpu'"),
        (lambda: Roofline(ROUND, SMALL, devices=0), "tensor_parallel_size must be positive"),
    ],
)
def test_wrong_values_are_named(act, message):
    with pytest.raises(ValueError, match=message):
        act()
