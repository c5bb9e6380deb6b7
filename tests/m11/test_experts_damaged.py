"""Models with experts that somebody else wrote: what cannot be is refused by the field's or the tensor's name."""

from __future__ import annotations

from typing import Any

import pytest

from folovllm import LLM, ModelLoadError
from folovllm.models.registry import decoder_spec
from tests.helpers import edit_tensors, make_hf_folder, tiny_hf_config


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


def test_a_tensor_of_an_expert_is_missed_by_its_name_in_the_checkpoint(tmp_path: Any) -> None:
    name = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
    folder = edit_tensors(make_hf_folder(tmp_path, "mixtral"), lambda tensors: tensors.pop(name))
    with pytest.raises(ValueError, match=rf"lacks 1 tensor\(s\): {name}"):
        LLM(str(folder), skip_tokenizer_init=True)
