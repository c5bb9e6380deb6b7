"""Shared by M7's judges: the embedded model's weights and its loss in plain torch, and rounding to nearest."""

import json
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer

FOLDER = Path(os.environ.get("LAB_TREE", ".")) / "folovllm/assets/embedded"
LAYERS, HEAD_SIZE, WINDOW, WINDOWS = 4, 32, 128, 8


def read_weights():
    """Name -> float32 weight."""
    stored = load_file(FOLDER / "model.safetensors")
    return {name.removeprefix("model."): weight.float() for name, weight in stored.items()}


def read_tokens():
    """[windows, tokens] of texts that are of one piece."""
    lines = (FOLDER / "calibration.jsonl").read_text(encoding="utf-8").splitlines()
    text = "".join(json.loads(line).get("text", "") for line in lines)
    ids = Tokenizer.from_file(str(FOLDER / "tokenizer.json")).encode(text).ids
    return torch.tensor(ids[: WINDOWS * WINDOW]).view(WINDOWS, WINDOW)


def rounded(weight, bits, group_size):
    """Each weight to its nearest code, symmetrically; scales in bfloat16."""
    last = 2 ** (bits - 1) - 1
    grouped = weight.unflatten(1, (-1, group_size))
    scale = (grouped.abs().amax(-1, keepdim=True) / last).clamp(min=1e-12).bfloat16().float()
    return ((grouped / scale).round().clamp(-last - 1, last) * scale).flatten(1)


def quantised(weights, choose):
    """(the weights as they are read back, the bytes that they take); choose(name, out, size) -> bits, group_size."""
    new, size = dict(weights), 0
    for name, weight in weights.items():
        if weight.dim() == 1:
            size += 2 * weight.numel()
            continue
        bits, group_size = choose(name, *weight.shape)
        new[name] = rounded(weight, bits, group_size)
        size += -(-weight.numel() * bits // 8) + 2 * (weight.numel() // group_size)
    return new, size


def loss(weights, ids):
    """Nats a token of a Qwen3 whose head is its embedding."""
    angles = torch.arange(ids.shape[1])[:, None] * 10000.0 ** -(torch.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
    cos, sin = angles.cos(), angles.sin()

    def norm(x, name):
        return F.rms_norm(x, x.shape[-1:], weights[name], 1e-6)

    def turn(x):
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def product(x, name):
        return F.linear(x, weights[f"{name}.weight"])

    x = weights["embed_tokens.weight"][ids]
    for at in (f"layers.{n}" for n in range(LAYERS)):
        h = norm(x, f"{at}.input_layernorm.weight")
        q, k, v = (product(h, f"{at}.self_attn.{n}_proj").unflatten(-1, (-1, HEAD_SIZE)).transpose(1, 2) for n in "qkv")
        q, k = (turn(norm(heads, f"{at}.self_attn.{n}_norm.weight")) for heads, n in ((q, "q"), (k, "k")))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + product(h.transpose(1, 2).flatten(2), f"{at}.self_attn.o_proj")
        h = norm(x, f"{at}.post_attention_layernorm.weight")
        h = F.silu(product(h, f"{at}.mlp.gate_proj")) * product(h, f"{at}.mlp.up_proj")
        x = x + product(h, f"{at}.mlp.down_proj")
    logits = F.linear(norm(x, "norm.weight"), weights["embed_tokens.weight"])
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).item()
