"""Configurations with experts: which layers have them, and what is refused by the field's name."""

from __future__ import annotations

from typing import Any

import pytest

from folovllm import ModelLoadError
from folovllm.models.registry import decoder_spec
from folovllm.quant_scheme import ONLINE
from folovllm.quantize.recipe import Recipe
from tests.helpers import tiny_hf_config


def test_every_second_layer_but_the_dense_ones_has_experts() -> None:
    spec = decoder_spec(tiny_hf_config("qwen3_moe", num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3]))
    assert spec.experts is not None
    assert sorted(spec.experts.layers) == [1, 5]


def test_mixtrals_experts_have_the_size_of_an_mlp_and_weights_that_sum_to_one() -> None:
    spec = decoder_spec(tiny_hf_config("mixtral"))
    assert spec.experts is not None
    assert (spec.experts.size, spec.experts.renormalize, spec.experts.num_experts) == (96, True, 4)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("qwen3_moe", {"num_experts": 0}, "num_experts must be positive, got 0"),
        ("mixtral", {"num_local_experts": -3}, "num_local_experts must be positive, got -3"),
        ("qwen3_moe", {"num_experts": 10**9}, "num_experts must be at most 50000 in so many layers"),
        ("qwen3_moe", {"num_experts_per_tok": 9}, r"num_experts_per_tok must be at most num_experts \(8\), got 9"),
        ("mixtral", {"num_experts_per_tok": 0}, "num_experts_per_tok must be positive, got 0"),
        ("qwen3_moe", {"moe_intermediate_size": 0}, "moe_intermediate_size must be positive, got 0"),
        ("qwen2_moe", {"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size must be positive"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step must be positive, got 0"),
        ("qwen3_moe", {"mlp_only_layers": [2]}, r"mlp_only_layers must be a list of numbers below 2, got \[2\]"),
        ("qwen3_moe", {"hidden_act": "gelu"}, "hidden_act must be 'silu'"),
    ],
)
def test_what_cannot_be_is_refused_by_the_fields_name(kind: str, fields: dict[str, Any], message: str) -> None:
    config = tiny_hf_config(kind)
    for name, value in fields.items():
        setattr(config, name, value)
    with pytest.raises(ModelLoadError, match=message):
        decoder_spec(config)


def test_calibration_says_that_rare_experts_see_too_little() -> None:
    with pytest.raises(ValueError, match="^model must have no experts to be quantised here, got 8: .*'w4a16'"):
        Recipe("gptq", ONLINE["w4a16"]).check_fits(decoder_spec(tiny_hf_config("qwen3_moe")))


def test_a_router_is_never_quantised() -> None:
    for name in ("model.layers.0.mlp.gate", "model.layers.3.mlp.shared_expert_gate"):
        assert ONLINE["w4a16"].of_layer(name) is None
    assert ONLINE["w4a16"].of_layer("model.layers.0.mlp.experts.7.gate_proj") is not None
    assert ONLINE["w4a16"].of_layer("model.layers.0.mlp.gate_proj") is not None
