"""Folders as Qwen's own FP8 checkpoints are: e4m3 weights, and a scale for each block of 128 x 128."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.helpers import make_hf_folder

SETTINGS = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
UNEVEN: dict[str, Any] = {
    "hidden_size": 192, "intermediate_size": 320, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64,
}  # fmt: skip
"""Sizes that are no multiples of 128, and k_proj smaller than a block."""
Tensors = dict[str, torch.Tensor]


def to_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(e4m3 [out, in], a scale for each block float32, what they mean float32), block by block."""
    outs, size = weight.shape
    numbers, meant = torch.empty(outs, size, dtype=torch.float8_e4m3fn), torch.empty(outs, size)
    scale = torch.empty(-(-outs // 128), -(-size // 128))
    for row in range(len(scale)):
        for column in range(scale.shape[1]):
            place = slice(128 * row, 128 * row + 128), slice(128 * column, 128 * column + 128)
            scale[row, column] = weight[place].abs().max() / 448
            numbers[place] = (weight[place] / scale[row, column]).to(torch.float8_e4m3fn)
            meant[place] = numbers[place].float() * scale[row, column]
    return numbers, scale, meant


def make_fp8_folder(tmp_path: Path, kind: str = "qwen3", kept: tuple[str, ...] = (), **over: Any) -> tuple[Path, Path]:
    """(the folder, one with the weights that it means in float32). kept: names of modules that are not converted."""
    meant = make_hf_folder(tmp_path, kind, **over)
    folder = Path(shutil.copytree(meant, tmp_path / "fp8"))
    tensors = load_file(meant / "model.safetensors")
    stored = dict(tensors)
    for name in tensors:
        if name.endswith("_proj.weight") and not any(part in name for part in kept):
            stored[name], stored[f"{name}_scale_inv"], tensors[name] = to_blocks(tensors[name])
    save(meant, tensors)
    save(folder, stored)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = SETTINGS | ({"modules_to_not_convert": ["lm_head", *kept]} if kept else {})
    (folder / "config.json").write_text(json.dumps(config))
    return folder, meant


def save(folder: Path, tensors: Tensors) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def edited(folder: Path, tmp_path: Path, edit: Callable[[Tensors], object]) -> Path:
    copy = Path(shutil.copytree(folder, tmp_path / "edited"))
    tensors = load_file(copy / "model.safetensors")
    edit(tensors)
    save(copy, tensors)
    return copy
