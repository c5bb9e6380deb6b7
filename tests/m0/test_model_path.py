"""A model by its name: a folder that is whole, a hub id, `embedded`; and what a wrong one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from folovllm import ModelConfig, ModelLoadError, get_model_and_tokenizer
from folovllm.model_loader import model_files
from folovllm.model_loader.hf_config import load_hf_config
from folovllm.model_loader.model_files import EMBEDDED_FOLDER, resolve_model_path
from tests.helpers import hf_greedy


def test_a_whole_folder_resolves_to_itself(folder: Path) -> None:
    assert resolve_model_path(str(folder)) == str(folder)


def test_a_path_that_is_not_there_is_not_taken_for_a_hub_id(tmp_path: Path) -> None:
    missing = str(tmp_path / "nope")
    with pytest.raises(ModelLoadError) as caught:
        resolve_model_path(missing)
    assert str(caught.value) == f"model must be 'embedded', a folder or a hub id, got {missing!r}: no such folder"


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
    assert Path(model_files.__file__).parents[1] / "assets" / "embedded" == EMBEDDED_FOLDER
    monkeypatch.setattr(model_files, "EMBEDDED_FOLDER", folder)
    assert resolve_model_path("embedded") == str(folder)
    model, tokenizer = get_model_and_tokenizer(ModelConfig("embedded"), "cpu")
    assert tokenizer is not None
    assert len(hf_greedy(model, tokenizer("Hi")["input_ids"], 4)) == 4
