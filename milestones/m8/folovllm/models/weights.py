"""Getting weights into a model without ever holding two copies of them.

The model says, for each checkpoint name, which view of its parameters that tensor fills (checkpoint_slots); a stacked
parameter such as qkv has three such views. Loading is one loop: read a tensor, find its slot, copy.

vLLM: model_executor/model_loader/default_loader.py, dummy_loader.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open

from folovllm.errors import ModelLoadError
from folovllm.layers.ops import LayerOps
from folovllm.model_loader.model_files import readable_errors, resolve_model_path
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.registry import decoder_spec

# Which files a snapshot of a hub repository must hold, and which are not read: the makers' own format, other exports.
WANTED_FILES = ["*.safetensors", "*.json"]
UNWANTED_FILES = ["consolidated*", "*/*"]


def build_model(
    config: Any,
    max_model_len: int,
    dtype: torch.dtype,
    device: torch.device,
    weights: Path | None,
    *,
    seed: int = 0,
    ops: LayerOps | None = None,
) -> DecoderForCausalLM:
    """Our model for a transformers configuration, with its weights in place.

    Args:
        weights: a folder with *.safetensors, or None for random numbers of the right shapes ("dummy").
        ops: what computes the layers; None: plain torch.

    Raises:
        ModelLoadError: a field of the configuration cannot be used; see decoder_spec and load_weights.
    """
    spec, ops = decoder_spec(config), ops or LayerOps()
    with readable_errors(config.name_or_path or config.model_type):
        with torch.device(device), default_dtype(dtype):
            model = DecoderForCausalLM(spec, max_model_len, ops).eval()  # parameters are empty: no memory is touched
        if weights is None:
            fill_with_dummy_weights(model, seed)
        else:
            load_weights(model, iterate_safetensors(weights))
    ops.process_weights_after_loading(model)
    return model


def weights_folder(model: str) -> Path:
    """The local folder with the model's weights, downloaded first if `model` is a hub id."""
    path = resolve_model_path(model)
    if not Path(path).is_dir():
        with readable_errors(model):
            path = snapshot_download(path, allow_patterns=WANTED_FILES, ignore_patterns=UNWANTED_FILES)
    return Path(path)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """torch's default dtype within a `with` block; new parameters take it."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(previous)


def iterate_safetensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of every tensor of the checkpoint in the folder, shards in name order."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
        for name in names:
            # The file is opened anew for each tensor. It is mapped into memory, and pages that were read stay in this
            # process as long as the mapping lives: one mapping for all tensors would peak at twice the weights.
            with safe_open(path, framework="pt") as file:
                yield name, file.get_tensor(name)


@torch.no_grad()
def load_weights(model: DecoderForCausalLM, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Copy each tensor into its slot, converting its dtype on the way.

    Raises:
        ModelLoadError: a tensor is missing, has another shape, or is none of the model's; by name.
    """
    slots = dict(model.checkpoint_slots())
    for name, tensor in tensors:
        if (name == "lm_head.weight" and model.lm_head.tied) or name.endswith("rotary_emb.inv_freq"):
            continue  # the embedding once more; what follows from rope_parameters
        if name.startswith("model.mtp_layers."):
            continue  # MiMo's multi-token prediction, by which it may guess
        slot = slots.pop(name, None)
        if slot is None:
            raise ModelLoadError(f"the checkpoint has a tensor that the model has no place for: {name}")
        if tensor.shape != slot.shape:
            shape, wanted = tuple(tensor.shape), tuple(slot.shape)
            raise ModelLoadError(f"tensor {name} has shape {shape}, the configuration asks for {wanted}")
        slot.copy_(tensor)
    if slots:
        raise ModelLoadError(f"the checkpoint lacks {len(slots)} tensor(s): {', '.join(sorted(slots)[:5])}")


@torch.no_grad()
def fill_with_dummy_weights(model: DecoderForCausalLM, seed: int) -> None:
    """Small random numbers, the same for the same seed: the shapes and the speed of a model without its file.

    They are uniform and not normal, which is several times cheaper to draw. The model's text is noise either way.
    """
    generator = torch.Generator(device=next(model.parameters()).device).manual_seed(seed)
    for name, slot in model.checkpoint_slots():
        if name.endswith("norm.weight"):
            slot.fill_(1.0)
        else:
            slot.uniform_(-0.05, 0.05, generator=generator)
