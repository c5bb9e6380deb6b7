"""The folders at both ends: one whose tensors are read one at a time, and one that is filled when it is whole.

vLLM: none; transformers' save_pretrained
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from folovllm.errors import ModelLoadError
from folovllm.model_loader.model_files import checkpoint_files, is_gguf, read_json, resolve_model_path
from folovllm.models.checkpoint import read_heads
from folovllm.models.weights import weights_folder
from folovllm.utils.checks import wrong
from folovllm.utils.named_files import wrong_file

SHARD_BYTES = 2**30
PART = ".folovllm-part"
"""Of a folder that is not whole yet: where it is written."""
COPIED = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt",
    "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json", "LICENSE",
)  # fmt: skip
"""What of a model's folder stays true when its weights are quantised."""


class Checkpoint:
    """The tensors of a model's folder."""

    def __init__(self, model: str) -> None:
        if is_gguf(model):
            when = "quantization='w4a16' rounds a GGUF file when it is loaded"
            raise ModelLoadError(f"model must be a folder or a hub id, got {model!r}; {when}")
        self.folder = weights_folder(model)
        if not Path(resolve_model_path(model)).is_dir():  # of the hub: weights_folder() asks for less
            snapshot_download(model, allow_patterns=list(COPIED))
        self.tensors = read_heads(self.folder)

    def read(self, name: str) -> torch.Tensor:
        """As it is stored.

        Raises:
            ModelLoadError: it has numbers that are not finite.
        """
        # Opened anew for each tensor, as models/weights.py does: else the pages that were read stay in memory.
        with safe_open(self.tensors[name].path, framework="pt") as file:
            tensor = self.tensors[name].read(file)
        if not tensor.isfinite().all():
            raise ModelLoadError(f"tensor {name} has numbers that are not finite, which no code can represent")
        return tensor


def weight_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in checkpoint_files(folder))


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
            with write_errors(self.folder):
                save_file(self.waiting, self._path(len(self.shards)), metadata={"format": "pt"})
            self.num_bytes += sum(each.nbytes for each in self.waiting.values())
            self.shards.append(list(self.waiting))
            self.waiting = {}

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.part"


def check_target(out: Path) -> None:
    """Raises ValueError: no folder can be made there, or there is something in it."""
    way_out = "name a new folder"
    if out.exists() and not out.is_dir():
        raise wrong("out", "be a folder", str(out), f"this is a file; {way_out}")
    if out.is_dir() and any(path.name != PART for path in out.iterdir()):
        raise wrong("out", "be a new or an empty folder", str(out), f"there is something in it; {way_out}")
    if not out.parent.is_dir() or (out.is_symlink() and not out.exists()):
        raise wrong("out", "be in a folder that is there", str(out))


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to write to, inside `out`: that may be a link or a mount point. What is in it moves up if the block ends
    well, and is gone if it does not. What a run that was killed left is cleared away."""
    check_target(out)
    is_new, part = not out.exists(), out / PART
    with write_errors(out):
        part.mkdir(parents=True, exist_ok=True)
    lock = os.open(part, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise wrong("out", "be a new or an empty folder", str(out), "another run is writing there") from None
        _clear(part)
        try:
            yield part
            check_target(out)
            for path in sorted(part.iterdir(), key=lambda path: path.name == "config.json"):
                path.rename(out / path.name)  # config.json last: without it, no folder is taken for a model
            part.rmdir()
        except BaseException:
            shutil.rmtree(part)
            if is_new and not any(out.iterdir()):
                out.rmdir()
            raise
    finally:
        os.close(lock)


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextmanager
def write_errors(folder: Path) -> Iterator[None]:
    """Raises ValueError: what the block writes could not be written, as on a full disk."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise wrong_file("out", "be a folder that can be written, with room for all of it", folder, why) from None


def copy_rest(source: Path, target: Path, changes: dict[str, Any]) -> None:
    """config.json, with what it has to say of the weights, and the files beside it."""
    config = read_json(source / "config.json") | changes
    with write_errors(target):
        write_json(target / "config.json", config)
        for name in COPIED:
            if (source / name).is_file():
                shutil.copyfile(source / name, target / name)


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", "utf-8")
