"""What is decided when the model is known: device, dtype and the longest length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from folovllm import ModelConfig, ModelLoader, model_loader
from folovllm.model_loader import resolve_device, resolve_dtype, resolve_max_model_len
from folovllm.model_loader.hf_config import load_hf_config
from tests.helpers import make_hf_folder, tiny_hf_config

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


# --- dtype


@pytest.mark.parametrize(
    ("own", "device", "bf16_units", "expected"),
    [
        (BF16, CUDA, True, BF16),
        (BF16, CUDA, False, F16),
        (F16, CUDA, False, F16),
        (F32, CUDA, False, F32),
        (BF16, CPU, True, BF16),
        (BF16, CPU, False, F32),
        (F16, CPU, True, F32),
        (F16, CPU, False, F32),
        (F32, CPU, True, F32),
        (None, CPU, True, F32),
        (None, CUDA, True, F32),
    ],
)
def test_dtype_auto(
    own: torch.dtype | None,
    device: torch.device,
    bf16_units: bool,
    expected: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_loader, "cpu_has_bf16_units", lambda: bf16_units)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0) if bf16_units else (7, 5))
    hf_config = tiny_hf_config("qwen3")
    hf_config.dtype = own
    assert resolve_dtype(ModelConfig("m"), hf_config, device) is expected


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_a_dtype_that_was_asked_for_is_taken(device: torch.device) -> None:
    hf_config = tiny_hf_config("qwen3")
    hf_config.dtype = F32
    assert resolve_dtype(ModelConfig("m", dtype="half"), hf_config, device) is F16


@pytest.mark.parametrize(("bf16_units", "expected"), [(True, BF16), (False, F32)])
def test_a_bf16_checkpoint_from_disk_follows_the_rule(
    bf16_units: bool, expected: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_hf_folder(tmp_path, "qwen3", dtype=BF16)
    monkeypatch.setattr(model_loader, "cpu_has_bf16_units", lambda: bf16_units)
    model = ModelLoader(ModelConfig(str(made))).load("cpu")
    assert {p.dtype for p in model.parameters()} == {expected}


# --- device


def test_without_a_gpu_the_device_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device(ModelConfig("m")) == CPU


def test_with_a_gpu_the_device_is_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert resolve_device(ModelConfig("m")) == torch.device("cuda:1")
    assert resolve_device(ModelConfig("m", device="cuda:0")) == torch.device("cuda:0")
    assert resolve_device(ModelConfig("m", device="cpu")) == CPU


@pytest.mark.parametrize(("device", "count"), [("cuda", 0), ("cuda:1", 1)])
def test_a_device_that_is_not_there_is_refused(device: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(ValueError, match=rf"^device must exist, got '{device}' where torch finds {count} CUDA"):
        resolve_device(ModelConfig("m", device=device))


# --- max_model_len


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10000.0, **more}


LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
LONGROPE = rope(
    "longrope",
    short_factor=[1.0] * 8,
    long_factor=[2.0] * 8,
    original_max_position_embeddings=128,
    factor=4.0,
)
LENGTHS = [
    (None, 512),
    (rope("default"), 512),
    (rope("linear", factor=2.0), 1024),
    (rope("dynamic", factor=4.0), 2048),
    (rope("yarn", factor=4.0, original_max_position_embeddings=128), 512),  # 128 x 4, not 512 x 4
    (rope("yarn", factor=4.0, original_max_position_embeddings=512), 2048),  # stretched beyond what it says
    (rope("yarn", factor=4.0), 2048),
    (LLAMA3, 512),  # the factor is in max_position_embeddings already
    (LONGROPE, 512),
]


@pytest.mark.parametrize(("parameters", "expected"), LENGTHS, ids=[str((r or {}).get("rope_type")) for r, _ in LENGTHS])
def test_length_of_the_model(parameters: dict[str, Any] | None, expected: int) -> None:
    hf_config = tiny_hf_config("qwen3", max_position_embeddings=512, rope_parameters=parameters)
    assert resolve_max_model_len(hf_config, None) == expected


def test_length_from_a_file_that_uses_the_old_names(tmp_path: Path) -> None:
    """Files on the hub still say rope_scaling and "type"."""
    import json

    made = make_hf_folder(tmp_path, "llama")
    settings = json.loads((made / "config.json").read_text())
    del settings["rope_parameters"]
    settings |= {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 3.0}}
    (made / "config.json").write_text(json.dumps(settings))
    assert resolve_max_model_len(load_hf_config(ModelConfig(str(made))), None) == 3 * 512


def test_the_user_may_ask_for_all_or_less() -> None:
    hf_config = tiny_hf_config("qwen3", max_position_embeddings=512)
    assert resolve_max_model_len(hf_config, 100) == 100
    assert resolve_max_model_len(hf_config, 512) == 512


def test_more_than_the_model_has_is_an_error() -> None:
    message = r"^max_model_len must be at most 512, the length the model was made for, got 513$"
    with pytest.raises(ValueError, match=message):
        resolve_max_model_len(tiny_hf_config("qwen3", max_position_embeddings=512), 513)


def test_a_model_that_does_not_say_gets_2048_or_what_is_asked() -> None:
    from transformers import PreTrainedConfig

    assert resolve_max_model_len(PreTrainedConfig(), None) == 2048
    assert resolve_max_model_len(PreTrainedConfig(), 5000) == 5000
