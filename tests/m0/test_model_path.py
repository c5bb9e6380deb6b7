"""A model by its name: a folder that is whole, a hub id, `embedded`; and what a wrong one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from folovllm import ModelConfig, ModelLoadError, get_model_and_tokenizer, model_files
from folovllm.hf_config import load_hf_config
from folovllm.model_files import EMBEDDED_FOLDER, checkpoint_files, resolve_model_path
from tests.helpers import hf_greedy, make_hf_folder


def refusal(folder: Path, **needs: bool) -> str:
    with pytest.raises(ModelLoadError) as caught:
        resolve_model_path(str(folder), **needs)
    return str(caught.value)


def test_a_whole_folder_resolves_to_itself(folder: Path) -> None:
    assert resolve_model_path(str(folder), weights=True, tokenizer=True) == str(folder)


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


def test_an_index_that_is_no_json_is_a_load_error(tmp_path: Path) -> None:
    made = make_hf_folder(tmp_path, "llama", sharded=True)
    (made / "model.safetensors.index.json").write_text("<html>")
    assert refusal(made).startswith(f"{made}/model.safetensors.index.json cannot be read: ")


def test_the_files_read_are_those_that_transformers_reads(tmp_path: Path) -> None:
    def names() -> list[str]:
        return [file.name for file in checkpoint_files(tmp_path)]

    (tmp_path / "consolidated.safetensors").touch()  # the makers' own format, beside transformers'
    assert names() == ["consolidated.safetensors"]
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"b": "2", "a": "1", "c": "2"}}')
    assert names() == ["1", "2"]
    (tmp_path / "model.safetensors").touch()
    assert names() == ["model.safetensors"]


def test_a_path_that_is_not_there_is_not_taken_for_a_hub_id(tmp_path: Path) -> None:
    missing = str(tmp_path / "nope")
    message = f"model must be 'embedded', a folder or a hub id, got {missing!r}: no such folder"
    assert refusal(Path(missing)) == message


def test_a_file_is_not_a_folder(folder: Path) -> None:
    assert refusal(folder / "config.json").startswith("model must be a folder, got the file ")


@pytest.mark.parametrize("hub_id", ["Qwen/Qwen3-0.6B", "gpt2", "meta-llama/Llama-3.2-1B"])
def test_a_hub_id_is_passed_on(hub_id: str) -> None:
    assert resolve_model_path(hub_id) == hub_id


def test_a_hub_id_that_cannot_be_fetched_is_named() -> None:
    with pytest.raises(ModelLoadError, match="^model 'nobody/nothing' cannot be loaded: "):
        load_hf_config(ModelConfig("nobody/nothing"))


def test_a_configuration_that_is_no_json_is_a_load_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{ not json")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        load_hf_config(ModelConfig(str(tmp_path)))


def test_embedded_is_the_folder_in_the_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path(model_files.__file__).parent / "assets" / "embedded" == EMBEDDED_FOLDER
    monkeypatch.setattr(model_files, "EMBEDDED_FOLDER", folder)
    assert resolve_model_path("embedded") == str(folder)
    model, tokenizer = get_model_and_tokenizer(ModelConfig("embedded"), "cpu")
    assert tokenizer is not None
    assert len(hf_greedy(model, tokenizer("Hi")["input_ids"], 4)) == 4


def test_a_package_without_its_model_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "EMBEDDED_FOLDER", tmp_path / "gone")
    with pytest.raises(ModelLoadError, match=r"model folder '.*gone' is not complete, it lacks config\.json"):
        resolve_model_path("embedded")
