"""What somebody else wrote, wrong in every way: one kind of error comes out, and it names the file or the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from folovllm import ModelConfig, ModelLoader, ModelLoadError
from folovllm.hf_config import load_hf_config
from folovllm.model_files import checkpoint_files, resolve_model_path
from folovllm.model_loader import load_tokenizer
from tests.helpers import hf_greedy, make_hf_folder, make_hf_model


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
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return ModelConfig(str(folder), dtype="float32")


def refusal(folder: Path, **fields: Any) -> str:
    with pytest.raises(ModelLoadError) as caught:
        load_hf_config(change(folder, **fields))
    return str(caught.value)


# --- config.json


@pytest.mark.parametrize("text", ["[]", "null", "3", '"x"', "{", "", '{"model_type": "qwen3"', "\xff"])
def test_a_configuration_that_is_no_object_is_a_load_error(text: str, folder: Path) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelLoadError):
        load_hf_config(ModelConfig(str(folder)))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("hidden_size", "64", "Validation error for field 'hidden_size': TypeError: "),
        (
            "quantization_config",
            {"quant_method": "gptq", "bits": 4},
            "quantization_config.group_size None is not supported: a multiple of 8, or -1 for a row at a time",
        ),
    ],
)
def test_a_configuration_that_cannot_be_used_is_named(field: str, value: Any, said: str, folder: Path) -> None:
    message = refusal(folder, **{field: value})
    assert message.startswith(f"model {str(folder)!r} cannot be loaded: ")
    assert said in message


# --- weight files


@pytest.mark.parametrize(
    "content",
    ["[]", "3", "{}", *(f'{{"weight_map": {names}}}' for names in ("[]", "{}", '{"a": 1}', '{"a": ""}'))],
)
def test_an_index_that_maps_nothing_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelLoadError, match=r"model\.safetensors\.index\.json"):
        checkpoint_files(tmp_path)


@pytest.mark.parametrize(
    "name", ["../other/model.safetensors", "/etc/model.safetensors", "a/../../b.safetensors", "a" * 5000]
)
def test_an_index_leads_nowhere_but_into_its_folder(name: str, tmp_path: Path) -> None:
    made = make_hf_folder(tmp_path, "llama", sharded=True)
    index = made / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = name
    index.write_text(json.dumps(content))
    with pytest.raises(ModelLoadError, match=r"must name files of its own folder, got '.* for model\.norm\.weight"):
        ModelLoader(ModelConfig(str(made))).load("cpu")


def test_an_index_of_more_files_than_a_model_has_is_refused_with_a_few_of_them(tmp_path: Path) -> None:
    index = {"weight_map": {f"layers.{i}.weight": f"model-{i}.safetensors" for i in range(10_001)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelLoadError) as caught:
        checkpoint_files(tmp_path)
    few = "'model-0.safetensors', 'model-1.safetensors', 'model-2.safetensors', ..."
    assert str(caught.value).endswith(f"index.json must name at most 10000 files, got 10001: {few}")


def test_an_index_of_many_tensors_looks_at_each_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = {"weight_map": {f"layers.{i}.weight": f"model-{i % 2}.safetensors" for i in range(20_000)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    made = []
    monkeypatch.setattr("folovllm.model_files.Path", lambda name: made.append(name) or Path(name))
    assert checkpoint_files(tmp_path) == [tmp_path / "model-0.safetensors", tmp_path / "model-1.safetensors"]
    assert set(made) == {"model-0.safetensors", "model-1.safetensors"}
    assert len(made) <= 4


def test_an_index_may_name_links(tmp_path: Path) -> None:
    """The hub's cache holds links to files that lie elsewhere."""
    made = make_hf_folder(tmp_path, "llama", sharded=True)
    for shard in list(made.glob("*.safetensors")):
        shard.rename(tmp_path / shard.name)
        shard.symlink_to(tmp_path / shard.name)
    loaded = ModelLoader(ModelConfig(str(made), dtype="float32")).load("cpu")
    assert hf_greedy(loaded, [5, 99], 8) == hf_greedy(make_hf_model("llama"), [5, 99], 8)


# --- names


def test_a_gguf_file_is_told_what_to_do_with_it(tmp_path: Path) -> None:
    (tmp_path / "tiny.Q4_1.gguf").touch()
    for name in (tmp_path / "tiny.Q4_1.gguf", tmp_path / "gone.gguf"):
        with pytest.raises(ModelLoadError, match=r"model must be a folder, got .*; GGUF is not read: convert it with"):
            resolve_model_path(str(name))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=r"it lacks \*\.safetensors .*; GGUF is not read: convert it with"):
        resolve_model_path(str(tmp_path))


def test_a_mistyped_folder_is_told_what_it_was_taken_for(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "qwen3-tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    hint = "there is no folder of that name here, so the hub was asked; did you mean 'models/qwen3-tiny'?"
    with pytest.raises(ModelLoadError) as caught:
        load_hf_config(ModelConfig("models/qwen3-tny"))
    assert str(caught.value).startswith("model 'models/qwen3-tny' cannot be loaded: ")
    assert str(caught.value).endswith(hint)
    with pytest.raises(ModelLoadError) as caught:
        load_tokenizer(ModelConfig(str(shared), tokenizer="models/qwen3-tny"))
    assert str(caught.value).endswith(hint)
    with pytest.raises(ModelLoadError, match=r"no such folder; did you mean '.*/models/qwen3-tiny'\?"):
        resolve_model_path(f"{tmp_path}/models/qwen3-tny")


def test_dummy_weights_without_a_tokenizer_ask_for_the_tokenizer_alone(tmp_path: Path) -> None:
    made = make_hf_folder(tmp_path, "qwen3")
    (made / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError) as caught:
        load_tokenizer(ModelConfig(str(made), load_format="dummy"))
    assert str(caught.value).endswith("is not complete, it lacks tokenizer.json (or tokenizer.model)")
