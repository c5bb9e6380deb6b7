"""Does a checkpoint fit the model, and the model the memory? Answered before a byte of it is taken.

The model is built on the meta device, where tensors have shapes and no storage. The heads of the weight files say what
is in them. So a configuration that asks for more than the files have is refused by a tensor's name, however much
memory it asks for.

vLLM: none; it finds out while it loads
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from folovllm.errors import ModelLoadError
from folovllm.model_files import checkpoint_files
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.utils.devices import total_memory_bytes

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
# As safetensors spells them. Whole numbers where the model has none are quantised weights without their scale, or none.
WEIGHT_DTYPES = ("F64", "F32", "F16", "BF16")
CODE_DTYPES = {torch.int8: "I8", torch.int32: "I32", torch.int64: "I64", torch.float8_e4m3fn: "F8_E4M3"}


class TensorInfo(NamedTuple):
    """What the head of a weight file says about a tensor."""

    dtype: str
    shape: tuple[int, ...]


def read_heads(folder: Path) -> dict[str, TensorInfo]:
    """Every tensor's dtype and shape, by name, from the heads of the weight files: no tensor is read.

    Raises:
        ModelLoadError: a file is broken, or a tensor is in two of them, by name.
    """
    found: dict[str, TensorInfo] = {}
    for path in checkpoint_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  not a dict
                head = {name: TensorInfo(part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items()}
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{path} cannot be read: {error}; was it downloaded to its end?") from None
        if twice := found.keys() & head.keys():
            raise ModelLoadError(f"{path} holds {min(twice)} once more: another file of the folder has it already")
        found |= head
    return found


def check_checkpoint(model: DecoderForCausalLM, found: dict[str, TensorInfo]) -> None:
    """Compare the tensors that the model asks for with those that were found.

    Raises:
        ModelLoadError: a tensor is missing, misshapen, quantized, or has no place in the model; by name.
    """
    slots = dict(model.checkpoint_slots())
    wanted = {name: tuple(slot.shape) for name, slot in slots.items()}
    if model.lm_head.tied and HEAD in found:  # load_weights() decides between the two
        wanted[HEAD] = wanted[EMBEDDING]
        if EMBEDDING not in found:
            del wanted[EMBEDDING]
    for name, (_, shape) in found.items():
        if name not in wanted and not name.endswith("rotary_emb.inv_freq"):  # that one follows from rope_parameters
            tied = model.lm_head.tied and name.startswith("lm_head.")
            why = "; tie_word_embeddings in config.json must be false for a head of its own" if tied else ""
            if f"model.{name}" in wanted:
                why = "; its name lacks 'model.': save the model with its head, as AutoModelForCausalLM does"
            raise ModelLoadError(f"the checkpoint has a tensor that the model has no place for: {name} {shape}{why}")
        if name in wanted and shape != wanted[name]:
            raise ModelLoadError(f"tensor {name} has shape {shape}, the configuration asks for {wanted[name]}")
    check_dtypes(found, slots)
    if names := sorted(wanted.keys() - found.keys()):
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise ModelLoadError(f"the checkpoint lacks {len(names)} tensor(s): {shown}")


def check_memory(model: DecoderForCausalLM, max_model_len: int, device: torch.device) -> None:
    """Refuse what the device could never hold.

    Raises:
        ModelLoadError: the weights, or the table of RoPE's angles, are larger than the whole memory.
    """
    memory = total_memory_bytes(device)
    weights = sum(parameter.numel() * parameter.itemsize for parameter in model.parameters())
    if weights > memory:
        raise ModelLoadError(f"the weights take {weights / 2**30:.1f} GiB, {device} has {memory / 2**30:.1f}")
    # While it is made, the table of cos and sin is in memory three times, in float32.
    angles = 3 * 4 * max_model_len * model.decoder_spec.head_size
    if weights + angles > memory:
        raise ModelLoadError(
            f"max_model_len must be less, got {max_model_len}: RoPE's angles take {angles / 2**30:.1f} GiB beside "
            f"weights of {weights / 2**30:.1f}, {device} has {memory / 2**30:.1f}"
        )


def check_dtypes(found: dict[str, TensorInfo], slots: dict[str, torch.Tensor]) -> None:
    """Raise for a tensor of other numbers than its slot holds: converted, they would be wrong weights."""
    for name, slot in slots.items():
        dtypes = (CODE_DTYPES[slot.dtype],) if slot.dtype in CODE_DTYPES else WEIGHT_DTYPES
        if name in found and found[name].dtype not in dtypes:
            raise ModelLoadError(
                f"tensor {name} holds {found[name].dtype}, the configuration asks for {' or '.join(dtypes)}"
            )
