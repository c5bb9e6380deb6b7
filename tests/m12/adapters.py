"""Adapters made on the spot, as PEFT writes them; and what they mean: Hugging Face's model with W + scale * B A."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
SEVEN = ATTENTION + MLP
# By name: (which matrices, further fields of the configuration). Different ranks, scales and subsets.
VOICES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "all": (SEVEN, {"r": 4, "lora_alpha": 6}),
    "few": (("q_proj", "v_proj", "down_proj"), {"r": 8, "lora_alpha": 4, "use_rslora": True}),
    "patterns": (
        ("k_proj", "o_proj", "up_proj"),
        {"r": 2, "lora_alpha": 3, "rank_pattern": {"o_proj": 5}, "alpha_pattern": {r"layers\.1\.mlp\.up_proj": 7}},
    ),
}


def linears_of(hf: torch.nn.Module, targets: tuple[str, ...]) -> dict[str, torch.nn.Linear]:
    found = {name: module for name, module in hf.named_modules() if name.rpartition(".")[2] in targets}
    return {name: module for name, module in found.items() if isinstance(module, torch.nn.Linear)}


def make_adapter(folder: Path, hf: torch.nn.Module, targets: tuple[str, ...], seed: int = 0, **config: Any) -> Path:
    """Random pairs for these matrices of all layers of `hf`, large enough to change what is said."""
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": [*targets], "bias": "none", **config}
    generator, tensors = torch.Generator().manual_seed(seed), {}
    for name, module in linears_of(hf, targets).items():
        rank = of_pattern(config, "rank_pattern", name, config["r"])
        for half, shape in (("A", (rank, module.in_features)), ("B", (module.out_features, rank))):
            noise = torch.randn(shape, generator=generator) * 0.2
            tensors[f"base_model.model.{name}.lora_{half}.weight"] = noise
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def of_pattern(config: dict[str, Any], pattern: str, module: str, default: Any) -> Any:
    return next((v for end, v in config.get(pattern, {}).items() if re.search(rf"(^|\.){end}$", module)), default)


def deltas(folder: Path) -> dict[str, torch.Tensor]:
    """By module: what is added to its weight."""
    config, tensors = (
        json.loads((folder / "adapter_config.json").read_text()),
        load_file(folder / "adapter_model.safetensors"),
    )
    found = {}
    for name, a in tensors.items():
        if name.endswith("lora_A.weight"):
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            rank = of_pattern(config, "rank_pattern", module, config["r"])
            alpha = of_pattern(config, "alpha_pattern", module, config["lora_alpha"])
            scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
            found[module] = scale * (tensors[name.replace("lora_A", "lora_B")] @ a)
    return found


class Adapted(torch.nn.Module):
    """A layer beside which an adapter computes from the same input, as it came."""

    def __init__(self, base: torch.nn.Module, delta: torch.Tensor) -> None:
        super().__init__()
        self.base, self.delta = base, delta

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.delta.T


def with_adapter(hf: torch.nn.Module, folder: Path, *, merged: bool = True) -> torch.nn.Module:
    """A copy of `hf` that speaks with the adapter: in its weights, or beside layers that round their inputs."""
    model = copy.deepcopy(hf)
    for name, delta in deltas(folder).items():
        module = model.get_submodule(name)
        if merged:
            module.weight.data += delta
        else:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, Adapted(module, delta))
    return model
