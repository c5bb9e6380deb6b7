"""Model folders that are not whole, or lead out of themselves: one kind of error comes out, and it names the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from folovllm import ModelConfig, ModelLoader, ModelLoadError
from folovllm.model_loader import load_tokenizer
from folovllm.model_loader.hf_config import load_hf_config
from folovllm.model_loader.model_files import checkpoint_files, resolve_model_path
from tests.helpers import edit_tensors, hf_greedy, make_hf_folder, make_hf_model


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hf_folder(tmp_path_factory.mktemp("damaged"), "qwen3")


def refusal(folder: Path, **needs: bool) -> str:
    with pytest.raises(ModelLoadError) as caught:
        resolve_model_path(str(folder), **needs)
    return str(caught.value)


# --- what is in a folder


def test_an_empty_folder_is_told_all_that_it_lacks(tmp_path: Path) -> None:
    assert refusal(tmp_path) == (
        f"model folder {str(tmp_path)!r} is not complete, it lacks config.json, *.safetensors (weights), "
        "tokenizer.json (or tokenizer.model)"
    )


def test_only_what_is_needed_is_demanded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model_path(str(tmp_path), weights=False) == str(tmp_path)
    assert "*.safetensors (weights)" in refusal(tmp_path, weights=True)
    (tmp_path / "model.safetensors").touch()
    assert resolve_model_path(str(tmp_path)) == str(tmp_path)
    assert refusal(tmp_path, tokenizer=True).endswith("it lacks tokenizer.json (or tokenizer.model)")


def test_pickled_weights_are_explained(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").touch()
    assert "its *.bin weights are pickles, which can run code" in refusal(tmp_path)


def test_a_lost_shard_is_named(tmp_path: Path) -> None:
    made = make_hf_folder(tmp_path, "llama", sharded=True)
    shards = sorted(made.glob("*.safetensors"))
    shards[1].unlink()
    assert f"it lacks 1 of {len(shards)} weight files ({shards[1].name})" in refusal(made)


def test_the_files_read_are_those_that_transformers_reads(tmp_path: Path) -> None:
    def names() -> list[str]:
        return [file.name for file in checkpoint_files(tmp_path)]

    (tmp_path / "consolidated.safetensors").touch()  # the makers' own format, beside transformers'
    assert names() == ["consolidated.safetensors"]
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"b": "2", "a": "1", "c": "2"}}')
    assert names() == ["1", "2"]
    (tmp_path / "model.safetensors").touch()
    assert names() == ["model.safetensors"]


def test_a_file_is_not_a_folder(shared: Path) -> None:
    assert refusal(shared / "config.json").startswith("model must be a folder, got the file ")


# --- weight files


@pytest.mark.parametrize(
    "content",
    ["<html>", "[]", "3", "{}", *(f'{{"weight_map": {names}}}' for names in ("[]", "{}", '{"a": 1}', '{"a": ""}'))],
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
    monkeypatch.setattr("folovllm.model_loader.model_files.Path", lambda name: made.append(name) or Path(name))
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


# --- Hugging Face's model


def test_a_misshapen_tensor_is_named(tmp_path: Path) -> None:
    made = make_hf_folder(tmp_path, "qwen3")
    edit_tensors(made, lambda tensors: tensors.update({"model.norm.weight": torch.ones(3)}))
    with pytest.raises(ModelLoadError, match=r"its checkpoint has another shape for model\.norm\.weight;"):
        ModelLoader(ModelConfig(str(made))).load("cpu")


def test_many_missing_tensors_are_counted(tmp_path: Path) -> None:
    made = make_hf_folder(tmp_path, "qwen3")
    keep = {"model.embed_tokens.weight": load_file(made / "model.safetensors")["model.embed_tokens.weight"]}
    save_file(keep, made / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"its checkpoint lacks lm_head\.weight, .* and 19 more;"):
        ModelLoader(ModelConfig(str(made))).load("cpu")


# --- names


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
