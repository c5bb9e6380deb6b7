"""Our weights as a GGUF file, which llama.cpp reads: the same numbers in the same dtype under other names.

    weights.json  config, and for each tensor its name, shape, dtype and place      model.gguf  F32, F16 or BF16
    weights.bin   the tensors' bytes one behind the other                      ──▶              vectors always F32

A checkpoint rotates the two halves of a head against each other. llama.cpp does so for Qwen; for Llama it rotates
neighbours, so there the rows of q and k change places:

    checkpoint   0 1 2 3 | 4 5 6 7        GGUF of a Llama   0 4 1 5 2 6 3 7

`python gguf_file.py FOLDER Q4_0` lets llama.cpp quantise that file: 4 or 8 bits, a scale for each 32 weights.

The file holds no text of a vocabulary: prompts come as token ids.

vLLM: none
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

# The part of a checkpoint's name -> the part of GGUF's.
PARTS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
QUANTIZED = {"Q4_0": 2, "Q8_0": 7}  # llama_ftype


def write_gguf(folder: str) -> str:
    """The path of the GGUF file that was written beside weights.bin in `folder`.

    Raises:
        ValueError: an architecture or a rotation that has no counterpart here.
    """
    np: Any = import_module("numpy")
    gguf: Any = import_module("gguf")
    given = json.loads((Path(folder) / "weights.json").read_text(encoding="utf-8"))
    config, path = given["config"], str(Path(folder) / "model.gguf")
    writer = gguf.GGUFWriter(path, architecture(config))
    _describe(writer, config)
    data = np.memmap(Path(folder) / "weights.bin", dtype=np.uint8, mode="r")
    for tensor in given["tensors"]:
        raw = data[tensor["offset"] : tensor["offset"] + tensor["bytes"]]
        array = raw.view(np.uint16 if tensor["dtype"] != "float32" else np.float32).reshape(tensor["shape"])
        array = reorder(array, tensor["name"], config)
        name = gguf_name(tensor["name"])
        if array.ndim == 1:  # norms and biases
            writer.add_tensor(name, as_float32(np, array, tensor["dtype"]))
        else:
            kind = getattr(gguf.GGMLQuantizationType, TYPES[tensor["dtype"]])
            if kind == gguf.GGMLQuantizationType.BF16:  # numpy has no such type: its bytes, and what they are
                rows = np.ascontiguousarray(array).view(np.uint8)
                writer.add_tensor(name, rows, raw_dtype=kind)
            else:
                writer.add_tensor(name, array.view(np.float16) if kind == gguf.GGMLQuantizationType.F16 else array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def quantize(path: str, kind: str) -> str:
    """The path of another file, beside it, in which llama.cpp has made the matrices `kind`; the head is its choice."""
    lib: Any = import_module("llama_cpp")
    settings, out = lib.llama_model_quantize_default_params(), str(Path(path).with_name(f"{kind}.gguf"))
    settings.ftype = QUANTIZED[kind]
    if lib.llama_model_quantize(path.encode(), out.encode(), ctypes.byref(settings)) != 0:
        raise RuntimeError(f"llama.cpp could not make {kind} of {path}")
    Path(path).unlink()
    return out


def architecture(config: dict[str, Any]) -> str:
    """What GGUF calls it. A rotation that is scaled would have to be described as well, and is refused."""
    kind = config["model_type"]
    if kind not in ("llama", "qwen2", "qwen3"):
        raise ValueError(f"model must be a llama, qwen2 or qwen3 for a GGUF file, got {kind!r}")
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        raise ValueError(f"rope_type must be 'default' for a GGUF file, got {rope['rope_type']!r}")
    return str(kind)


def gguf_name(name: str) -> str:
    """model.layers.3.self_attn.q_proj.weight -> blk.3.attn_q.weight"""
    part, _, ending = name.rpartition(".")
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", part)
    prefix, part = (f"blk.{layer[1]}.", layer[2]) if layer else ("", part)
    return f"{prefix}{PARTS[part]}.{ending}"


def reorder(array: Any, name: str, config: dict[str, Any]) -> Any:
    """The rows of a Llama's q and k as llama.cpp rotates them; everything else as it is."""
    part = name.split(".")[-2]
    if config["model_type"] != "llama" or part not in ("q_proj", "k_proj"):
        return array
    heads = config["num_attention_heads"] if part == "q_proj" else config["num_key_value_heads"]
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def as_float32(np: Any, array: Any, dtype: str) -> Any:
    if dtype == "bfloat16":  # the upper half of a float32
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.view(np.float16).astype(np.float32) if dtype == "float16" else array


def _describe(writer: Any, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or config
    writer.add_name("folovllm-bench")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type({"float32": 0, "float16": 1, "bfloat16": 32}[config["dtype"]])
    writer.add_tokenizer_model("no_vocab")


if __name__ == "__main__":
    written = write_gguf(sys.argv[1])
    print(quantize(written, sys.argv[2]) if len(sys.argv) > 2 else written)
