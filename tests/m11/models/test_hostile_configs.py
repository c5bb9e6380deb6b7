"""Folders of other people whose config.json is wrong: refused before anything is built, by the field's name."""

from __future__ import annotations

import json

import pytest

from folovllm import ModelConfig, ModelLoadError
from folovllm.model_loader.hf_config import load_hf_config
from folovllm.models.registry import model_spec
from tests.helpers import tiny_hf_config
from tests.m11.models.tiny_types import config_of

NAN, HUGE = float("nan"), 10**15
OURS = ("auto", "transformers")  # both know these models
QWEN2 = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
EXPERTS = {"num_experts_per_tok": [0, -1, 9, 2.5, None, "2"], "hidden_size": [0, -64, 2.5, None]}
WINDOWS = {
    "sliding_window": [-1, 2.5, "16", True, NAN, HUGE, [16]],
    "layer_types": [["full_attention"], ["sliding_attention"] * 9, "full_attention", [1, 2], {}, [["full_attention"]]],
}
HEADS = {
    "num_attention_heads": [0, -4, 2.5, "4", None], "num_key_value_heads": [0, -2, 3, 2.5, "2", HUGE],
    "vocab_size": [0, -1, 2.5, None, "256", HUGE], "num_hidden_layers": [0, -1, 2.5, None, 10**9],
    "head_dim": [0, -16, 2.5, "16", HUGE],
}  # fmt: skip
HOSTILE = {
    "mixtral": {**EXPERTS, "num_local_experts": [0, -1, 2.5, "4", None, True, 10**6, HUGE, NAN], **WINDOWS},
    "qwen3_moe": {
        **EXPERTS, "num_experts": [0, -1, 2.5, "8", None, HUGE], "moe_intermediate_size": [0, -1, 2.5],
        "decoder_sparse_step": [0, -1, 2.5], "mlp_only_layers": [[5], "x", [-1], [0.5]],
    },
    "qwen2": {**WINDOWS, "use_sliding_window": ["yes", 1]},
    "qwen2_moe": {"num_experts": [0], "num_experts_per_tok": [9], "shared_expert_intermediate_size": [0, -1]},
    "llama": HEADS,
    "gemma2": {
        **WINDOWS, "num_key_value_heads": [3], "attn_logit_softcapping": [0, -1, NAN, "50", float("inf"), True],
        "final_logit_softcapping": [0, -1, NAN], "query_pre_attn_scalar": [0, -1, NAN, "x"],
    },
    "gpt_oss": {**WINDOWS, "num_local_experts": [0, -1, HUGE], "num_experts_per_tok": [0, -1, 9]},
    "granite": {"logits_scaling": [0, -1, NAN, "x"], "attention_multiplier": [0, NAN]},
    "cohere": {"logit_scale": [0, NAN, "x"]},
    "deepseek_v3": {"n_routed_experts": [0, -1], "num_experts_per_tok": [0, 99], "v_head_dim": [-1]},
}  # fmt: skip


def config(kind):
    if kind in ("gemma2", "gpt_oss", "granite", "cohere", "deepseek_v3", "gpt2"):
        return config_of(kind)
    return tiny_hf_config(kind, **(QWEN2 if kind == "qwen2" else {}))


def spec_of(folder, model_impl, max_model_len=64):
    return model_spec(model_impl, load_hf_config(ModelConfig(str(folder), load_format="dummy")), max_model_len)


def write(folder, kind, **over):
    """over: fields, of which some have a second name in what transformers saves."""
    values = config(kind).to_dict()
    if kind == "qwen3_moe":
        values["num_experts"] = values.pop("num_local_experts")
    if kind == "mixtral":
        values["sliding_window"] = 16
    (folder / "config.json").write_text(json.dumps({**values, **over}))
    return folder


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind, fields in HOSTILE.items() for field in fields])
def test_a_wrong_field_is_refused_by_its_name(kind, field, tmp_path):
    impls = OURS if kind in ("mixtral", "qwen3_moe", "qwen2", "qwen2_moe", "llama") else ("auto",)
    for impl in impls:
        assert spec_of(write(tmp_path, kind), impl).vocab_size == 256
        for value in HOSTILE[kind][field]:
            with pytest.raises(ModelLoadError, match=field):
                spec_of(write(tmp_path, kind, **{field: value}), impl)


@pytest.mark.parametrize("kind", ["gpt_oss", "gemma2", "mixtral"])
def test_a_window_of_nothing_is_refused_where_a_layer_asks_for_it(kind, tmp_path):
    with pytest.raises(ModelLoadError, match="sliding_window must be positive, got 0"):
        spec_of(write(tmp_path, kind, sliding_window=0), "transformers")


@pytest.mark.parametrize("impl", OURS)
def test_a_window_of_layers_that_have_none_is_refused(impl, tmp_path):
    """Llama's. It changes nothing where no sequence gets so long."""
    folder = write(tmp_path, "llama", sliding_window=16)
    with pytest.raises(ModelLoadError, match="window"):
        spec_of(folder, impl)
    assert not spec_of(folder, impl, 16).has_extras


def test_a_number_of_layers_by_another_name_is_counted_too(tmp_path):
    with pytest.raises(ModelLoadError, match="num_hidden_layers must be at most 1000, got 1000000000"):
        spec_of(write(tmp_path, "gpt2", n_layer=10**9), "auto")


def test_a_flag_is_no_size_though_its_name_ends_like_one(tmp_path):
    """LFM2's block_auto_adjust_ff_dim. A size that is a flag is refused all the same."""
    folder = write(tmp_path, "gpt2", block_auto_adjust_ff_dim=True)
    assert spec_of(folder, "auto").vocab_size == 256
    with pytest.raises(ModelLoadError, match=r"n_embd|hidden_size must be an integer, got True \(bool\)"):
        spec_of(write(tmp_path, "gpt2", n_embd=True), "auto")
    with pytest.raises(ModelLoadError, match="block_ff_dim must be non-negative, got -1"):
        spec_of(write(tmp_path, "gpt2", block_ff_dim=-1), "auto")
