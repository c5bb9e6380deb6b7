"""A GGUF file as a Hugging Face folder would be: its config.json, and its tensors under the names of such a checkpoint.

    blk.0.attn_q.weight ──▶ model.layers.0.self_attn.q_proj.weight    float32, what the stored blocks mean
                            model.layers.0.self_attn.q_proj.blocks    bytes as they are, if our kernels have such codes

A "llama" file turns neighbours where Hugging Face turns halves, so there the rows of q and k change places:

    file   0 4 1 5 2 6 3 7        here   0 1 2 3 | 4 5 6 7

vLLM: none; its 0.32 reads no GGUF file by itself
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from folovllm.model_loader.gguf_file import CONTROL, GGUFFile, Tensor, open_gguf

if TYPE_CHECKING:
    import numpy as np
    import torch

ARCHITECTURES = {
    "llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}  # fmt: skip
"""By general.architecture. Mistral's files are "llama" files."""
NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj", "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}  # fmt: skip
ELSEWHERE = "take the folder that it was made from"
STACKS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Parts that our layers compute in one product."""
ENDS = ("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>")
"""Tokens at which llama.cpp stops, whatever the file names."""
LLAMA3 = {
    "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
"""What all stretched Llama 3 have in common. A file has the factors that follow from it."""


class Block(NamedTuple):
    """Columns with common numbers, and what codes of ours they are: see layers/quantization/gguf_blocks.py."""

    columns: int
    num_bytes: int
    bits: int
    group_size: int
    symmetric: bool


BLOCKS = {
    "Q4_0": Block(32, 18, 4, 32, True), "Q4_1": Block(32, 20, 4, 32, False),
    "Q5_0": Block(32, 22, 8, 32, True), "Q5_1": Block(32, 24, 8, 32, False), "Q8_0": Block(32, 34, 8, 32, True),
    "Q4_K": Block(256, 144, 4, 32, False), "Q5_K": Block(256, 176, 8, 32, False), "Q6_K": Block(256, 210, 8, 16, True),
}  # fmt: skip


def gguf_settings(path: str, name: str) -> dict[str, Any] | None:
    """What would stand in the file `name` of a Hugging Face folder.

    Raises:
        ModelLoadError: the file is damaged, or asks for what is not computed here; by the field.
    """
    file = open_gguf(path)
    if name == "config.json":
        return _config(file)
    if name != "generation_config.json":
        return None
    kinds = file.values("tokenizer.ggml.token_type")
    texts = zip(file.values("tokenizer.ggml.tokens"), kinds, strict=False)
    ends = {number for number, (text, kind) in enumerate(texts) if kind == CONTROL and text in ENDS}
    named = (file.fields.get(f"tokenizer.ggml.{each}_token_id") for each in ("eos", "eot", "eom"))
    return {"eos_token_id": sorted(ends.union(number for number in named if isinstance(number, int)))}


def _config(file: GGUFFile) -> dict[str, Any]:
    fields, kind = file.fields, file.fields.get("general.architecture")
    if kind not in ARCHITECTURES:
        raise file.damaged("general.architecture", f"be one of {', '.join(ARCHITECTURES)}", kind, ELSEWHERE)
    if (parts := fields.get("split.count", 1)) > 1:
        raise file.damaged("split.count", "be 1", parts, "join the parts with llama-gguf-split --merge")
    if kind != "qwen3moe" and (experts := fields.get(f"{kind}.expert_count", 0)):
        raise file.damaged(f"{kind}.expert_count", "be 0", experts, ELSEWHERE)
    if "token_embd.weight" not in file.tensors:
        raise file.damaged("token_embd.weight", "be there", None)

    def number(name: str, of: type = int, default: Any = None) -> Any:
        return file.number(f"{kind}.{name}", of, default)

    heads, hidden = number("attention.head_count"), number("embedding_length")
    head_dim = number("attention.key_length", default=hidden // heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if (size := number(name, default=head_dim)) != head_dim:
            raise file.damaged(f"{kind}.{name}", f"be a head's {head_dim} numbers", size, ELSEWHERE)
    embedding, layers = file.tensors["token_embd.weight"], _quantized(file)
    config = {
        "model_type": kind.replace("moe", "_moe"), "architectures": [ARCHITECTURES[kind]], "hidden_size": hidden,
        "vocab_size": embedding.shape[0], "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"), "num_attention_heads": heads, "head_dim": head_dim,
        "num_key_value_heads": number("attention.head_count_kv", default=heads),
        "max_position_embeddings": number("context_length"), "rope_parameters": _rope(file, kind, head_dim),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon", float),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "dtype": {"F32": "float32", "F16": "float16"}.get(embedding.type, "bfloat16"), "_name_or_path": str(file.path),
    }  # fmt: skip
    if kind == "qwen3moe":
        config |= {
            "num_experts": number("expert_count"), "num_experts_per_tok": number("expert_used_count"),
            "moe_intermediate_size": number("expert_feed_forward_length"), "norm_topk_prob": True,
        }  # fmt: skip
    config |= {f"{name}_token_id": fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
    return config | ({"quantization_config": {"quant_method": "gguf", "layers": layers}} if layers else {})


def _rope(file: GGUFFile, kind: str, head_dim: int) -> dict[str, Any]:
    import numpy as np

    name, theta = f"{kind}.rope.scaling", file.number(f"{kind}.rope.freq_base", float, 10000.0)
    scaling, rope = file.fields.get(f"{name}.type", "none"), {"rope_theta": theta, "rope_type": "default"}
    if scaling in ("linear", "yarn"):
        rope |= {"rope_type": scaling, "factor": file.number(f"{name}.factor", float)}
        if scaling == "yarn":
            rope["original_max_position_embeddings"] = file.number(f"{name}.original_context_length", int)
    elif scaling != "none":
        raise file.damaged(f"{name}.type", "be linear or yarn", scaling)
    elif (stored := file.tensors.get("rope_freqs.weight")) is not None:
        found = np.frombuffer(file.data, np.float32, stored.num_bytes // 4, stored.start)
        factor = float(found.max(initial=1.0))
        periods = 8192 * theta ** (np.arange(0, -head_dim, -2) / head_dim)
        keep = ((periods / (2 * np.pi) - 1) / 3).clip(0, 1)
        if stored.type != "F32" or len(found) != len(keep) or not np.allclose(found * (keep + (1 - keep) / factor), 1):
            raise file.damaged("rope_freqs.weight", "be as of Llama 3", found[:8].tolist())
        rope |= LLAMA3 | {"factor": factor}
    return rope


def _our_name(stored: str) -> str:
    """Without its ending: blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj"""
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.\w+", stored)
    part = layer[2] if layer else stored.rpartition(".")[0]
    return (f"model.layers.{layer[1]}." if layer else "") + NAMES.get(part, part)


def _quantized(file: GGUFFile) -> dict[str, dict[str, Any]]:
    """The layers whose blocks are codes of ours, and which: the parts of a product have one number of bits and one size
    of groups, the widest that none of them is rounded by."""
    types = {_our_name(stored): tensor.type for stored, tensor in file.tensors.items() if len(tensor.shape) > 1}
    types.setdefault("lm_head", types.pop("model.embed_tokens", ""))
    found = {}
    for name in types:
        parent, dot, part = name.rpartition(".")
        stack = next((stack for stack in STACKS if part in stack), (part,))
        of = [types.get(parent + dot + each, "") for each in stack]
        if all(each in BLOCKS for each in of):
            _, _, bits, groups, symmetric = zip(*(BLOCKS[each] for each in of), strict=True)
            alike = {"bits": max(bits), "group_size": min(groups), "symmetric": all(symmetric)}
            found[name] = {"blocks": tuple(of), **alike}
    return found


def gguf_tensors(path: Path) -> Iterator[tuple[str, str, tuple[int, ...], str, int | None]]:
    """(name, dtype, shape, name for GGUFWeights, number of the expert) of each tensor of a Hugging Face checkpoint.

    What has codes comes twice: widened, and as blocks. A tied embedding has rows to look up, and codes as the head.
    """
    file = open_gguf(path)
    layers = _quantized(file)
    for stored, tensor in file.tensors.items():
        name, ending = _our_name(stored), stored.rpartition(".")[2]
        if stored == "rope_freqs.weight":  # it is in rope_parameters
            continue
        if not _can_widen(tensor.type):
            raise file.damaged(f"type of {stored}", "be one that the package gguf widens", tensor.type, ELSEWHERE)
        forms = [(f"{name}.{ending}", "F32", tensor.shape, stored)]
        if stored == "token_embd.weight" and "output.weight" not in file.tensors and "lm_head" in layers:
            name = "lm_head"
        if name in layers and ending == "weight":
            forms.append((f"{name}.blocks", "U8", (*tensor.shape[:-1], tensor.row_bytes), f"{stored}:blocks"))
        for ours, dtype, shape, where in forms:
            if ".experts." not in ours:
                yield ours, dtype, shape, where, None
            else:
                for expert in range(shape[0]):
                    yield ours.replace(".experts.", f".experts.{expert}."), dtype, shape[1:], where, expert


@cache
def _can_widen(kind: str) -> bool:
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    try:
        dequantize(np.zeros(GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1:], np.uint8), GGMLQuantizationType[kind])
    except NotImplementedError:
        return False
    return True


class GGUFWeights:
    """An open file, with the methods that safetensors has for one. While it is open, what was read stays in memory."""

    def __init__(self, path: Path) -> None:
        import numpy as np

        self.file, self.data = open_gguf(path), np.memmap(path, np.uint8, "r")

    def __enter__(self) -> GGUFWeights:
        return self

    def __exit__(self, *error: object) -> None:
        del self.data

    def get_tensor(self, stored: str) -> torch.Tensor:
        return self.get_slice(stored)[..., :]

    def get_slice(self, stored: str) -> GGUFSlice:
        name, _, as_blocks = stored.partition(":")
        tensor = self.file.tensors[name]
        rows = self.data[tensor.start : tensor.start + tensor.num_bytes].reshape(*tensor.shape[:-1], tensor.row_bytes)
        kind = self.file.fields["general.architecture"]
        if kind == "llama" and (part := re.search(r"attn_([qk])\.weight$", name)):
            heads = self.file.number("llama.attention.head_count", int)
            if part[1] == "k":
                heads = self.file.number("llama.attention.head_count_kv", int, heads)
            rows = rows.reshape(heads, -1, 2, tensor.row_bytes).swapaxes(1, 2).reshape(rows.shape)
        return GGUFSlice(rows, None if as_blocks else tensor)


class GGUFSlice:
    """Rows of bytes, or of the float32 that they mean as `tensor`: what is asked for is widened by PIECE bytes."""

    def __init__(self, rows: np.ndarray, tensor: Tensor | None) -> None:
        self.rows, self.tensor = rows, tensor

    def get_shape(self) -> tuple[int, ...]:
        return self.rows.shape if self.tensor is None else self.tensor.shape

    def __getitem__(self, cut: tuple[Any, ...]) -> torch.Tensor:
        import torch
        from gguf import GGMLQuantizationType, dequantize

        from folovllm.utils.memory import PIECE  # loads torch

        rows = self.rows[cut[:-1]]
        if self.tensor is None:
            return torch.from_numpy(rows.copy())[..., cut[-1]].contiguous()
        kind, columns = GGMLQuantizationType[self.tensor.type], range(self.tensor.shape[-1])
        out = torch.empty(*rows.shape[:-1], len(columns[cut[-1]]))
        rows, wide = rows.reshape(-1, rows.shape[-1]), out.view(-1, out.shape[-1]).numpy()
        step = max(1, PIECE // (4 * len(columns)))
        for first in range(0, len(rows), step):
            wide[first : first + step] = dequantize(rows[first : first + step], kind)[:, cut[-1]]
        return out
