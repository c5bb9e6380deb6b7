"""What somebody else wrote, wrong in every way: one kind of error comes out, and it names the file or the field."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from folovllm import ModelConfig, ModelLoadError
from folovllm.model_loader.hf_config import load_generation_config, load_hf_config
from tests.helpers import edit_config, make_hf_folder
from tests.m8.test_draft_engine import changed, drafting


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hf_folder(tmp_path_factory.mktemp("damaged"), "qwen3")


@pytest.fixture
def folder(shared: Path) -> Any:
    """A whole model, whose JSON files are put back after the test."""
    kept = {path: path.read_bytes() for path in shared.glob("*.json")}
    yield shared
    for path in shared.glob("*.json"):
        path.unlink()
    for path, content in kept.items():
        path.write_bytes(content)


def change(folder: Path, **fields: Any) -> ModelConfig:
    """The folder's configuration with some fields replaced."""
    return ModelConfig(str(edit_config(folder, **fields)), dtype="float32")


def refusal(folder: Path, **fields: Any) -> str:
    with pytest.raises(ModelLoadError) as caught:
        load_hf_config(change(folder, **fields))
    return str(caught.value)


# --- config.json


@pytest.mark.parametrize("text", ["[]", "null", "3", '"x"', "{", "", '{"model_type": "qwen3"', "\xff"])
def test_a_configuration_that_is_no_object_is_named(text: str, folder: Path) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelLoadError, match=r"config\.json (cannot be read|must hold a JSON object)"):
        load_hf_config(ModelConfig(str(folder)))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("hidden_size", "64", "Validation error for field 'hidden_size': TypeError: "),
        ("dtype", "float99", "dtype must be float32, bfloat16 or float16, got 'float99'"),
        ("torch_dtype", "int8", "torch_dtype must be float32, bfloat16 or float16, got 'int8'"),
        ("dtype", "nn", "dtype must be float32, bfloat16 or float16, got 'nn'"),
        ("architectures", "Qwen3ForCausalLM", "architectures must be a list of class names, got 'Qwen3ForCausalLM'"),
        ("model_type", [], "model_type must be a string, got []"),
        ("max_position_embeddings", 0, "max_position_embeddings must be positive, got 0"),
        ("rope_parameters", {"rope_type": "linear", "rope_theta": 1e4, "factor": "2"}, "['factor'] must be a number"),
        ("rope_parameters", {"rope_type": "linear", "rope_theta": 1e4, "factor": 0.0}, "['factor'] must be positive"),
        ("eos_token_id", "</s>", "eos_token_id"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(field: str, value: Any, said: str, folder: Path) -> None:
    message = refusal(folder, **{field: value})
    assert message.startswith(f"model {str(folder)!r} cannot be loaded: ")
    assert said in message


# Of JSON, which has no such numbers, Python reads NaN and Infinity too.
NO_NUMBERS = [math.nan, math.inf, -math.inf, True, "2", [2]]


@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, 0.0, -1e4, 1.0, 1e300])
@pytest.mark.parametrize("place", ["rope_theta", "rope_parameters", "rope_scaling", "a kind of layer"])
def test_a_base_that_no_angle_can_be_computed_from_is_refused(place: str, value: Any, folder: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": value}
    fields: dict[str, Any] = {place: rope, "rope_theta": 1e4}
    if place == "rope_theta":
        fields = {"rope_parameters": None, "rope_theta": value}
    if place == "a kind of layer":
        fields = {"rope_parameters": {"full_attention": rope}}
    assert "rope_theta" in refusal(folder, **fields)


NEEDED = {
    "linear": {"factor": 2.0},
    "yarn": {"factor": 2.0, "original_max_position_embeddings": 64},
    "llama3": {
        "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    },
}  # fmt: skip


@pytest.mark.parametrize("value", [*NO_NUMBERS, -1.0])
@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("linear", "factor"), ("llama3", "low_freq_factor"), ("llama3", "high_freq_factor"),
        ("yarn", "attention_factor"), ("yarn", "beta_fast"), ("yarn", "beta_slow"), ("yarn", "mscale"),
        ("yarn", "mscale_all_dim"), ("yarn", "original_max_position_embeddings"),
    ],
)  # fmt: skip
def test_a_number_of_a_scaling_that_nothing_can_be_computed_with_is_refused(
    kind: str, field: str, value: Any, folder: Path
) -> None:
    assert field in refusal(folder, rope_parameters=rope(kind, **{field: value}))


def rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 1e4} | NEEDED[kind] | fields


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        (rope("linear", factor=None), "rope_parameters['factor'] must be a number, got None"),
        (rope("yarn", factor=None), "rope_parameters['factor'] must be a number, got None"),
        (rope("linear", factor=1e-3), "rope_parameters['factor'] must leave something of a length of 512, got 0.001"),
        (rope("yarn", factor=1e-2), "rope_parameters['factor'] must leave something of a length of 64, got 0.01"),
        (rope("yarn", attention_factor=0), "rope_parameters['attention_factor'] must be positive, got 0"),
        (
            rope("llama3", high_freq_factor=1.0),
            "['high_freq_factor'] must be greater than low_freq_factor (1.0), got 1.0",
        ),
        (
            rope("yarn", original_max_position_embeddings=10**400),
            f"original_max_position_embeddings must be at most {2**40}, got 1000",
        ),
    ],
)
def test_a_scaling_of_rope_is_refused_with_its_reason(scaling: dict[str, Any], said: str, folder: Path) -> None:
    assert said in refusal(folder, rope_parameters=scaling)


@pytest.mark.parametrize("value", [0, -1, True, 10**13, 10**400])
@pytest.mark.parametrize(
    "field",
    [
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "max_position_embeddings",
    ],
)  # fmt: skip
def test_a_size_that_is_none_is_refused(field: str, value: Any, folder: Path) -> None:
    assert field in refusal(folder, layer_types=None, **{field: value})


@pytest.mark.parametrize("field", ["head_dim", "sliding_window"])
def test_a_size_that_some_models_write_as_0_may_not_be_less(field: str, folder: Path) -> None:
    load_hf_config(change(folder, **{field: 0}))
    assert f"{field} must be non-negative, got -1" in refusal(folder, use_sliding_window=True, **{field: -1})


@pytest.mark.parametrize(
    ("field", "settings", "said"),
    [
        ("quantization_config", {"quant_method": "gptq", "bits": 4}, "group_size None is not supported"),
        ("quantization_config", {"load_in_4bit": True}, "quant_method 'bitsandbytes' is not supported"),
        ("compression_config", {"quant_method": "compressed-tensors"}, "old name of quantization_config"),
        ("quantization_config", {"bits": 4}, "quant_method None is not supported"),
    ],
)
def test_a_quantization_is_refused_by_name(field: str, settings: Any, said: str, folder: Path) -> None:
    message = refusal(folder, **{field: settings})
    assert field in message
    assert said in message


def test_no_quantization_is_none(folder: Path) -> None:
    load_hf_config(change(folder, quantization_config=None))


# --- the ends of a text


@pytest.mark.parametrize("text", ["[]", "{", "", '{"eos_token_id": 7', "<html>"])
def test_a_damaged_generation_config_is_not_a_missing_one(text: str, folder: Path) -> None:
    (folder / "generation_config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"generation_config\.json (cannot be read|must hold a JSON object)"):
        load_generation_config(ModelConfig(str(folder)))


@pytest.mark.parametrize("eos", ["</s>", ["</s>"], 1.5, True, {}, [[1]], [None]])
def test_an_end_that_is_no_token_id_is_refused(eos: Any, folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    with pytest.raises(ModelLoadError, match="eos_token_id must be a token id or a list of them, got"):
        load_generation_config(ModelConfig(str(folder)))


def test_an_end_that_no_token_can_be_is_left_out(folder: Path) -> None:
    """Hugging Face compares with it in vain; the vocabulary has 256."""
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [-1, 7, 256]}))
    assert load_generation_config(ModelConfig(str(folder))).eos_token_ids == {7}


def test_the_files_of_a_hub_model_are_checked_alike(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the hub's cache, as no test may reach for the network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--me--tiny" / "snapshots" / "abc"
    shutil.copytree(shared, snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    config = ModelConfig("me/tiny")
    (snapshot / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert load_generation_config(config).eos_token_ids == {7}
    (snapshot / "generation_config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"generation_config\.json cannot be read"):
        load_generation_config(config)
    (snapshot / "generation_config.json").unlink()
    assert load_generation_config(config).eos_token_ids == set()
    settings = json.loads((snapshot / "config.json").read_text())
    (snapshot / "config.json").write_text(json.dumps(settings | {"quantization_config": {"quant_method": "awq"}}))
    with pytest.raises(ModelLoadError, match=r"^model 'me/tiny' cannot be loaded: quantization_config\.bits None"):
        load_hf_config(config)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quant"),
    ],
)
def test_so_is_a_draft_models(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelLoadError, match=rf"^speculative_config\['model'\]: .*{reason}"):
        drafting(speculative={"model": changed(tmp_path / "wrong", **fields)})
