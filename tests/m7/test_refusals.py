"""What is not supported, and what is damaged, is refused by name."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from folovllm import LLM, ModelConfig, ModelLoadError
from folovllm.model_loader.hf_config import load_hf_config
from folovllm.model_loader.quant_scheme import QuantScheme, read_scheme, select_scheme
from tests.helpers import edit_config, edit_tensors, make_hf_folder
from tests.m7.support import FOLDERS, read

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}

INPUTS = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}


def packed(weights=WEIGHTS, inputs=None, **fields):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"g": group}, **fields}


def two(first, second, **fields):
    """Groups with these targets: weights of 4 bits, and of 8."""
    eight = WEIGHTS | {"num_bits": 8}
    groups = {"a": {"targets": first, "weights": WEIGHTS}, "b": {"targets": second, "weights": eight}}
    return packed(config_groups=groups, **fields)


def test_schemes_are_read():
    assert read_scheme(GPTQ) == QuantScheme("gptq", 4, 128, True, ignore=("lm_head",))
    assert read_scheme(AWQ) == QuantScheme("awq", 4, 128, False, ignore=("lm_head",))
    assert read_scheme(packed(ignore=["lm_head"])) == QuantScheme("pack-quantized", 4, 128, True, ignore=("lm_head",))
    assert read_scheme(packed(inputs=INPUTS)) == QuantScheme("pack-quantized", 4, 128, True, 8)
    head = QuantScheme("pack-quantized", 8, 128, True)
    assert read_scheme(two(["Linear"], ["lm_head"])) == QuantScheme("pack-quantized", 4, 128, True, head=head)
    assert read_scheme(two(["Linear"], ["re:.*lm_head"], ignore=["lm_head"])).head is None
    assert read_scheme(packed(inputs=INPUTS, format="int-quantized")) == QuantScheme("int-quantized", 4, 128, True, 8)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method 'bitsandbytes'"),
        ({}, "quant_method None"),
        (GPTQ | {"bits": 3}, "bits 3"),
        (GPTQ | {"group_size": 100}, "group_size 100"),
        (GPTQ | {"desc_act": True}, "desc_act True"),
        (GPTQ | {"sym": False}, "sym False"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        (GPTQ | {"dynamic": {"-:x": {}}}, "dynamic"),
        (AWQ | {"bits": 8}, "bits 8"),
        (AWQ | {"version": "gemv"}, "version 'gemv'"),
        (AWQ | {"zero_point": False}, "zero_point False"),
        (packed(format="nvfp4-pack-quantized"), "format 'nvfp4-pack-quantized'"),
        (packed(WEIGHTS | {"type": "float"}), "weights.type 'float'"),
        (packed(WEIGHTS | {"strategy": "tensor"}), "weights.strategy 'tensor'"),
        (packed(WEIGHTS | {"actorder": "group"}), "weights.actorder 'group'"),
        (packed(inputs=INPUTS | {"num_bits": 4}), "num_bits 4"),
        (packed(inputs=INPUTS | {"dynamic": False}), "input_activations"),
        (packed(WEIGHTS | {"num_bits": 8}, INPUTS), "num_bits 8"),
        (packed(WEIGHTS | {"symmetric": False}, INPUTS), "weights"),
        (packed(config_groups={}), "config_groups"),
        (two(["Linear"], ["Linear"]), "config_groups"),
        (two(["Linear"], ["re:.*down_proj"]), "config_groups"),
        (packed(config_groups={"g": {"targets": ["lm_head"], "weights": WEIGHTS}}), "config_groups"),
        (packed(kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme"),
    ],
)
def test_what_is_not_supported_is_named(settings, field):
    with pytest.raises(ValueError) as refused:
        read_scheme(settings)
    assert str(refused.value).startswith(f"quantization_config.{field}")
    assert "folovllm" in str(refused.value) or "load the checkpoint" in str(refused.value)


@pytest.mark.parametrize("settings", [[], "gptq", 4, True])
def test_settings_must_be_an_object(settings):
    with pytest.raises(ValueError, match="quantization_config must be an object"):
        read_scheme(settings)


@pytest.mark.parametrize("names", ["lm_head", [1], {"a": 1}])
def test_names_must_be_a_list_of_names(names):
    with pytest.raises(ValueError, match="ignore must be a list of names"):
        read_scheme(packed(ignore=names))


def test_an_expression_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"no regular expression in 're:\('"):
        read_scheme(packed(ignore=["re:("]))


def copied(tmp_path, name):
    return shutil.copytree(FOLDERS / name, tmp_path / name)


def edited(tmp_path, name, **settings):
    folder = copied(tmp_path, name)
    before = json.loads((folder / "config.json").read_text())["quantization_config"]
    return edit_config(folder, quantization_config=before | settings)


def with_tensors(tmp_path, name, edit):
    return edit_tensors(copied(tmp_path, name), edit)


LAYER = "model.layers.0"


@pytest.mark.parametrize(
    ("name", "tensor", "change", "text"),
    [
        ("gptq-4-bits", "mlp.down_proj.g_idx", lambda found: found.flip(0),
         "g_idx puts columns into groups out of order"),
        ("pack-quantized-groups", "mlp.down_proj.weight_shape", lambda _: torch.tensor([32, 100]),
         r"weight_shape \[32, 100\] is not that of weight_packed"),
        ("pack-quantized-groups", "self_attn.k_proj.weight_shape", lambda _: torch.tensor([16, 100]),
         r"weight_shape \[16, 100\] is not that of weight_packed"),
        ("awq", "mlp.down_proj.scales", lambda found: found[:1],
         r"scales has shape \(1, 32\), the configuration asks for"),
    ],
)  # fmt: skip
def test_a_tensor_that_is_not_as_it_should_be(tmp_path, name, tensor, change, text):
    def edit(tensors):
        tensors[f"{LAYER}.{tensor}"] = change(tensors[f"{LAYER}.{tensor}"]).contiguous()

    layer = f"{LAYER}.{tensor.rpartition('.')[0]}"
    with pytest.raises(ModelLoadError, match=f"{layer}.{text}"):
        read(with_tensors(tmp_path, name, edit))


def test_a_scale_that_is_missing(tmp_path):
    with pytest.raises(ModelLoadError, match=f"lacks 1 tensor.*: {LAYER}.mlp.down_proj.scales"):
        read(with_tensors(tmp_path, "awq", lambda tensors: tensors.pop(f"{LAYER}.mlp.down_proj.scales")))


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("gptq-4-bits", {"group_size": 24}, "group_size must divide the 32 inputs of each layer, got 24"),
        ("pack-quantized-groups", {"ignore": ["lm_head", "re:.*q_proj"]},
         r"self_attn\.q_proj is not quantised, and .*k_proj is"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_the_layers(tmp_path, name, settings, text):
    with pytest.raises(ModelLoadError, match=text):
        read(edited(tmp_path, name, **settings))


@pytest.mark.parametrize("wanted", ["w4a16", "awq"])
def test_a_checkpoint_of_another_kind(wanted):
    folder = FOLDERS / "gptq-4-bits"
    with pytest.raises(ValueError, match=f"quantization must fit the checkpoint, .* 'gptq', got '{wanted}'"):
        LLM(folder, quantization=wanted, device="cpu", skip_tokenizer_init=True)


def test_a_kind_that_a_plain_checkpoint_is_not(tmp_path):
    folder = make_hf_folder(tmp_path, "qwen3")
    with pytest.raises(ValueError, match="quantization must fit the checkpoint, which is not quantised, got 'gptq'"):
        LLM(folder, quantization="gptq", device="cpu", skip_tokenizer_init=True)


def test_a_kind_that_it_is_may_be_named():
    config = ModelConfig(str(FOLDERS / "awq"), quantization="awq")
    assert select_scheme(config, load_hf_config(config).quantization_config) == read_scheme(AWQ | {"group_size": 16})


def test_a_word_that_is_no_quantization():
    with pytest.raises(ValueError, match="quantization must be one of"):
        ModelConfig("m", quantization="int4")


MODULES = "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.down_proj", "model.layers.10.mlp.gate_proj"


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["down_proj"], [1]),
        (["self_attn"], [0]),
        (["model.layers.1."], [0, 1]),
        (["model.layers.1"], [0, 1]),
        (["mlp.gate"], []),
        (["model.layers.*.mlp"], [1, 2]),
        (None, []),
    ],
)
def test_modules_that_awq_did_not_convert_are_found_as_transformers_and_autoawq_find_them(names, kept):
    scheme = read_scheme({**AWQ, "modules_to_not_convert": names})
    assert [place for place, name in enumerate(MODULES) if scheme.of_layer(name) is None] == kept


def test_gptq_quantised_the_modules_that_it_names():
    scheme = read_scheme({**GPTQ, "modules_in_block_to_quantize": [["self_attn.q_proj"], ["mlp.gate_proj"]]})
    assert [place for place, name in enumerate(MODULES) if scheme.of_layer(name) is None] == [1]
    with pytest.raises(ValueError, match="modules_in_block_to_quantize must be a list of lists of names, got"):
        read_scheme({**GPTQ, "modules_in_block_to_quantize": ["q_proj"]})


def test_a_regular_expression_ends_in_time():
    """re takes as many steps as there are ways to cut the name: hours."""
    quick, endless = (
        read_scheme({**AWQ, "modules_to_not_convert": [pattern]})
        for pattern in ("(([a-z._0-9]+)+)+!", r"((.|[a-z.]|\w)+)+\d[!?]")
    )
    assert quick.of_layer(MODULES[0]) is not None
    with pytest.raises(ValueError, match="quantization_config has a regular expression that takes too long"):
        endless.of_layer(MODULES[0])


@pytest.mark.parametrize("method", [["gptq"], {"gptq": 1}, 4])
def test_a_method_that_is_no_name_is_refused(method):
    with pytest.raises(ValueError, match="quantization_config.quant_method .* is not supported"):
        select_scheme(ModelConfig("embedded", quantization="gptq"), {"quant_method": method})
