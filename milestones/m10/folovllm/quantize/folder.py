"""The folders at both ends: one whose tensors are read one at a time, and one that is filled.

vLLM: none; transformers' save_pretrained
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from safetensors.torch import save_file

from folovllm.errors import ModelLoadError
from folovllm.model_loader.model_files import resolve_model_path
from folovllm.models.weights import weights_folder
from folovllm.utils.checks import wrong

SHARD_BYTES = 2**30
COPIED = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt",
    "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json", "LICENSE",
)  # fmt: skip
"""What of a model's folder stays true when its weights are quantised."""


class Checkpoint:
    """The tensors of a model's folder."""

    def __init__(self, model: str) -> None:
        self.folder = weights_folder(model)
        if not Path(resolve_model_path(model)).is_dir():  # of the hub: weights_folder() asks for less
            snapshot_download(model, allow_patterns=list(COPIED))
        self.files: dict[str, Path] = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                self.files |= dict.fromkeys(file.keys(), path)

    def read(self, name: str) -> torch.Tensor:
        """As it is stored.

        Raises:
            ModelLoadError: there is no such tensor, or it has numbers that are not finite.
        """
        if name not in self.files:
            raise ModelLoadError(f"the checkpoint lacks {name}")
        # Opened anew for each tensor, as models/weights.py does: else the pages that were read stay in memory.
        with safe_open(self.files[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        if not tensor.isfinite().all():
            raise ModelLoadError(f"tensor {name} has numbers that are not finite, which no code can represent")
        return tensor


def weight_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


class ShardWriter:
    """Writes tensors in files of about SHARD_BYTES, in the order in which they come."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.waiting: dict[str, torch.Tensor] = {}
        self.shards: list[list[str]] = []
        self.num_bytes = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        self.waiting[name] = tensor.cpu().contiguous()
        if sum(each.nbytes for each in self.waiting.values()) >= SHARD_BYTES:
            self._write()

    def finish(self) -> None:
        """Write what waits, and name the files as Hugging Face does: how many there are is known now."""
        self._write()
        names = [f"model-{n:05d}-of-{len(self.shards):05d}.safetensors" for n in range(1, len(self.shards) + 1)]
        if len(names) == 1:
            names = ["model.safetensors"]
        else:
            weight_map = {tensor: name for name, held in zip(names, self.shards, strict=True) for tensor in held}
            index = {"metadata": {"total_size": self.num_bytes}, "weight_map": weight_map}
            write_json(self.folder / "model.safetensors.index.json", index)
        for n, name in enumerate(names):
            self._path(n).rename(self.folder / name)

    def _write(self) -> None:
        if self.waiting:
            save_file(self.waiting, self._path(len(self.shards)), metadata={"format": "pt"})
            self.num_bytes += sum(each.nbytes for each in self.waiting.values())
            self.shards.append(list(self.waiting))
            self.waiting = {}

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.part"


def new_folder(out: Path) -> Path:
    """Raises ValueError: no folder can be made there, or there is something in it."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise wrong("out", "be a new or an empty folder", str(out), "there is something in it; name a new folder")
    if not out.parent.is_dir():
        raise wrong("out", "be in a folder that is there", str(out))
    out.mkdir(exist_ok=True)
    return out


def copy_rest(source: Path, target: Path, changes: dict[str, Any]) -> None:
    """config.json, with what it has to say of the weights, and the files beside it."""
    config = json.loads((source / "config.json").read_text("utf-8")) | changes
    write_json(target / "config.json", config)
    for name in COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", "utf-8")
