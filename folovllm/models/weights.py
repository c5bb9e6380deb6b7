"""Getting weights into a model without ever holding two copies of them.

The model says, for each checkpoint name, which view of its parameters that tensor fills (checkpoint_slots); a stacked
parameter such as qkv has three such views. Whether files and model fit is found out beforehand (checkpoint.py); loading
is then one loop: read a tensor, find its slot, copy.

vLLM: model_executor/model_loader/default_loader.py, dummy_loader.py
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download

from folovllm.distributed.parallel_state import GroupCoordinator
from folovllm.errors import ModelLoadError
from folovllm.layers.ops import LayerOps
from folovllm.model_loader.model_files import readable_errors, resolve_model_path
from folovllm.models.checkpoint import (
    CLASSIFIER,
    EMBEDDING,
    HEAD,
    TensorInfo,
    check_checkpoint,
    check_memory,
    open_weights,
    read_heads,
)  # fmt: skip
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.registry import decoder_spec
from folovllm.models.shard import Shard, parallel_ops, read_part, shard_of
from folovllm.utils.logging import init_logger
from folovllm.utils.memory import PIECE

logger = init_logger(__name__)
_DEFAULT = threading.Lock()  # torch's default dtype

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
    group: GroupCoordinator | None = None,
) -> DecoderForCausalLM:
    """Our model for a transformers configuration, with its weights in place.

    Args:
        weights: a folder with *.safetensors, a GGUF file, or None for random numbers of the right shapes ("dummy").
        ops: what computes the layers; None: plain torch.
        group: of the ranks that have a part of the model each, this one among them; None: it has all.

    Raises:
        ModelLoadError: unknown architecture; a wrong field of the configuration, by name; see check_checkpoint.
    """
    spec, ops, shard = decoder_spec(config), ops or LayerOps(), None
    if group is not None:
        shard = shard_of(spec, ops.linear, group.rank, group.world_size)
    with readable_errors(config.name_or_path or config.model_type):
        with torch.device("meta"), default_dtype(dtype):  # shapes without memory
            shape = DecoderForCausalLM(spec, max_model_len, ops)
        found = {} if weights is None else check_checkpoint(shape, read_heads(weights))
        if shard is not None and group is not None:
            spec, ops = shard.spec, parallel_ops(ops, shard, group)
            with torch.device("meta"), default_dtype(dtype):
                shape = DecoderForCausalLM(spec, max_model_len, ops)
        check_memory(shape, max_model_len, device)
        with torch.device(device), default_dtype(dtype):
            model = DecoderForCausalLM(spec, max_model_len, ops).eval()  # parameters are empty: no memory is touched
    if weights is None:
        fill_with_dummy_weights(model, seed)
    else:
        load_weights(model, read_tensors(found, shard))
    ops.process_weights_after_loading(model)
    return model


def weights_folder(model: str) -> Path:
    """The local folder with the model's weights, or a GGUF file; downloaded first if `model` is a hub id."""
    path = resolve_model_path(model)
    if not Path(path).exists():
        with readable_errors(model):
            path = snapshot_download(path, allow_patterns=WANTED_FILES, ignore_patterns=UNWANTED_FILES)
    return Path(path)


def read_pooler_head(weights: Path, token_ids: tuple[int, ...]) -> torch.Tensor:
    """A classifier's head, [labels, hidden] float32: its own, or of one row, as PoolerConfig.token_ids has it. Raises
    ModelLoadError: the checkpoint has none."""
    found, names = (
        read_heads(weights),
        (HEAD, EMBEDDING, EMBEDDING.removeprefix("model.")) if token_ids else (CLASSIFIER,),
    )
    info = next((found[name] for name in names if name in found), None)
    if info is None:
        raise ModelLoadError(f"the checkpoint lacks {names[0]}, the head that makes logits of a pooled row")
    with open_weights(info.path) as file:
        if not token_ids:
            return info.read(file).float()
        stored, size = info.open(file), info.shape[1]
        first, *second = (stored[each : each + 1, 0:size].float() for each in token_ids)
        return first - second[0] if second else first


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """torch's default dtype within a `with` block; new parameters take it. It is all threads': one at a time."""
    with _DEFAULT:
        previous = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(previous)


def iterate_safetensors(folder: Path, shard: Shard | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of every tensor in the folder, files in name order; or a rank's part, and no more is read."""
    return read_tensors(read_heads(folder), shard)


def read_tensors(found: dict[str, TensorInfo], shard: Shard | None) -> Iterator[tuple[str, torch.Tensor]]:
    """As iterate_safetensors, those that are named, in their order."""
    for path, of_file in groupby(found.items(), lambda named: named[1].path):
        names = deque(of_file)
        while names:
            # The file is opened anew after each PIECE. It is mapped into memory, and pages that were read stay in this
            # process as long as the mapping lives: one mapping for all tensors would peak at twice the weights.
            read = 0
            with open_weights(path) as file:
                while names and read < PIECE:
                    name, info = names.popleft()
                    part = info.read(file) if shard is None else read_part(info.open(file), name, shard)
                    if part is not None:
                        read += part.nbytes
                        yield name, part


@torch.no_grad()
def load_weights(model: DecoderForCausalLM, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Copy each tensor into its slot, converting its dtype on the way. check_checkpoint() has found them to fit."""
    slots = dict(model.checkpoint_slots())
    head = None
    for name, tensor in tensors:
        if name in slots:
            slots.pop(name).copy_(tensor)
        elif name == HEAD:
            head = tensor  # of a tied model: what becomes of it is decided when the embedding is there
    if head is not None:
        _settle_tied_head(model, head, embedding_is_there=EMBEDDING not in slots)


def _settle_tied_head(model: DecoderForCausalLM, head: torch.Tensor, *, embedding_is_there: bool) -> None:
    """Do with the head's own tensor, which a tied model should not have, what Hugging Face does.

    Most often it is the embedding once more. If it differs, config.json is wrong about the checkpoint: the head was
    trained apart, and without it the tokens would be others.
    """
    embedding = model.model.embed_tokens.weight
    own = torch.empty_like(embedding).copy_(head)  # compared as it would be used
    if not embedding_is_there:
        embedding.copy_(own)
    elif not torch.equal(own, embedding):
        logger.warning("tie_word_embeddings is true, but lm_head.weight is not the embedding: both are used")
        model.lm_head.untie(own)


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
