"""Configurations with experts: which layers have them, and what is never quantised."""

from __future__ import annotations

from folovllm.model_loader.quant_scheme import ONLINE
from folovllm.models.registry import decoder_spec
from tests.helpers import tiny_hf_config


def test_every_second_layer_but_the_dense_ones_has_experts() -> None:
    spec = decoder_spec(tiny_hf_config("qwen3_moe", num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3]))
    assert spec.experts is not None
    assert sorted(spec.experts.layers) == [1, 5]


def test_mixtrals_experts_have_the_size_of_an_mlp_and_weights_that_sum_to_one() -> None:
    spec = decoder_spec(tiny_hf_config("mixtral"))
    assert spec.experts is not None
    assert (spec.experts.size, spec.experts.renormalize, spec.experts.num_experts) == (96, True, 4)


def test_a_router_is_never_quantised() -> None:
    for name in ("model.layers.0.mlp.gate", "model.layers.3.mlp.shared_expert_gate"):
        assert ONLINE["w4a16"].of_layer(name) is None
    assert ONLINE["w4a16"].of_layer("model.layers.0.mlp.experts.7.gate_proj") is not None
    assert ONLINE["w4a16"].of_layer("model.layers.0.mlp.gate_proj") is not None
