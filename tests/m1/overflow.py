"""A model of finite weights that one token makes overflow in float16, and in float16 only."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file

from tests.m1.support import make_text_model

BOMB = ord("!")


def make_overflow_model(tmp_path: Path, **over: object) -> Path:
    """A random Qwen3 folder in which the embedding of BOMB ends where float16 ends, and the first layer adds to it.

    From then on the residual stream of that token is infinite and its norm NaN, and with it keys and values in the next
    layer, and all that attends to them.
    """
    folder = make_text_model(tmp_path, **over)
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.embed_tokens.weight"][BOMB] = 65_504.0
    weights["model.layers.0.self_attn.o_proj.weight"] *= 50  # float16's numbers there are 32 apart
    save_file(weights, path, metadata={"format": "pt"})
    return folder
