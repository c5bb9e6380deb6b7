"""Small GGUF files, written by the package gguf from random models of transformers.

gguf's own table says what it calls a tensor. A llama file has the rows of q and k as llama.cpp turns them, neighbours
beside each other: by the converter's rule, and not by the reader's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe"}


def turned(rows: np.ndarray, heads: int) -> np.ndarray:
    """0 1 2 3 4 5 6 7 of a head -> 0 4 1 5 2 6 3 7"""
    size, half = len(rows) // heads, len(rows) // heads // 2
    return rows[[head * size + n + upper for head in range(heads) for n in range(half) for upper in (0, half)]]


def blocks(tensor: np.ndarray, of: Any) -> np.ndarray:
    """Of a type that gguf can only widen: any bytes, with scales that make numbers of a weight's size from them."""
    columns, size = gguf.GGML_QUANT_SIZES[of]
    draw = np.random.default_rng(tensor.size)
    made = draw.integers(0, 256, (*tensor.shape[:-1], tensor.shape[-1] // columns, size), dtype=np.uint8)
    scales = {208: 1e-4} if of.name == "Q6_K" else {0: 1e-3, 2: 7.5e-3} if of.name == "Q4_K" else {0: 5e-4, 2: 7.5e-3}
    for at, scale in scales.items():
        made[..., at : at + 2] = np.array([scale], np.float16).view(np.uint8)
    return made.reshape(*tensor.shape[:-1], -1)


def write_gguf(
    path: Path, model: torch.nn.Module, kind: str = "F32", kinds: dict[str, str] | None = None,
    more: dict[str, np.ndarray] | None = None, **fields: Any,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Matrices are of `kind`, or of that in `kinds` by a part of their name. fields: more of them, by their names with
    "__" for a dot; more: tensors, by theirs. Returns gguf's own dequantisation of all tensors, by their names there."""
    config: Any = model.config
    arch = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if arch == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    for name, value in fields.items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
        add[type(value)](name.replace("__", "."), value)
    means = {}
    for name, tensor in [*_tensors(model, arch), *(more or {}).items()]:
        wanted = next((each for part, each in (kinds or {}).items() if part in name), kind)
        of = gguf.GGMLQuantizationType[wanted if tensor.ndim > 1 and "ffn_gate_inp" not in name else "F32"]
        rows = blocks(tensor, of) if of.name.endswith("_K") else gguf.quants.quantize(tensor, of)
        writer.add_tensor(name, rows, raw_dtype=of)
        means[name] = gguf.quants.dequantize(rows, of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return means


def _tensors(model: Any, arch: str) -> list[tuple[str, np.ndarray]]:
    """Under gguf's names; all experts of a layer are one tensor, and a tied head is none."""
    config, found = model.config, []
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        part, tensor = name.removesuffix(".weight").removesuffix(".bias"), parameter.float().numpy()
        ending = ".bias" if name.endswith(".bias") else ".weight"
        if part.endswith("gate_up_proj"):
            half = tensor.shape[1] // 2
            parts = [(part.replace("gate_up", each), tensor[:, cut]) for each, cut in
                     (("gate", slice(half)), ("up", slice(half, None)))]  # fmt: skip
        else:
            parts = [(part, tensor)]
        for each, rows in parts:
            if arch == "llama" and each.endswith(("q_proj", "k_proj")):
                heads = config.num_attention_heads if each.endswith("q_proj") else config.num_key_value_heads
                rows = turned(rows, heads)
            found.append((names.get_name(each) + ending, np.ascontiguousarray(rows)))
    return found


@torch.no_grad()
def widened(model: Any, means: dict[str, np.ndarray]) -> Any:
    """`model` with what was written to the file for its weights: the oracle."""
    arch, slots = ARCHITECTURES[model.config.model_type], model.state_dict()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], model.config.num_hidden_layers)
    for name, slot in slots.items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        part, _, ending = name.rpartition(".") if name.endswith((".weight", ".bias")) else (name, "", "weight")
        pieces = [part.replace("gate_up", each) for each in ("gate", "up")] if "gate_up_proj" in part else [part]
        rows = np.concatenate([means[f"{names.get_name(piece)}.{ending}"] for piece in pieces], axis=len(pieces) - 1)
        if arch == "llama" and part.endswith(("q_proj", "k_proj")):
            heads = model.config.num_attention_heads if part.endswith("q_proj") else model.config.num_key_value_heads
            back = np.argsort(turned(np.arange(len(rows)), heads))
            rows = rows[back]
        slot.copy_(torch.from_numpy(rows.copy()))
    return model
