"""Rotary position embedding, RoPE (Su et al., 2021, arXiv:2104.09864).

Each head vector is taken as head_dim / 2 points in the plane; at position p, point i is turned by the angle
p * inv_freq[i]. The product of two turned vectors then depends on the difference of their positions only. Point i is
made of elements i and i + head_dim/2 ("half rotation", the layout of Hugging Face checkpoints), not 2i and 2i+1.

Points with a low i turn fast, so they tell neighbouring positions apart. Points with a high i turn slowly, so they tell
far from near. A model is stretched to longer contexts than it was trained on by turning the slow points more slowly
still: the scaling rules below do no more.

vLLM: model_executor/layers/rotary_embedding/
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

Rotary = tuple[torch.Tensor, torch.Tensor]
"""cos and sin of a step's tokens, as RotaryEmbedding makes them."""


class RotaryEmbedding(nn.Module):
    """Reads cos and sin for positions; `apply_rotary` then turns q and k with them.

    Args:
        rope: the checkpoint's rope_parameters: rope_theta, rope_type and what that type needs.
        max_position: positions 0 .. max_position - 1 are tabulated, in float32.
    """

    cos_sin: torch.Tensor

    def __init__(self, head_dim: int, max_position: int, rope: dict[str, Any]) -> None:
        super().__init__()
        inv_freq, magnitude = rope_frequencies(head_dim, rope)
        angles = torch.outer(torch.arange(max_position, dtype=torch.float32), inv_freq)
        # [max_position, 2, head_dim/2], float32 whatever the model's dtype: bfloat16 has 8 bits for the angle.
        self.register_buffer("cos_sin", torch.stack((angles.cos(), angles.sin()), dim=1) * magnitude, persistent=False)

    def forward(self, positions: torch.Tensor) -> Rotary:
        """positions [num_tokens] -> cos, sin, each [num_tokens, 1, head_dim]: one row serves all heads.

        Widened to head_dim here, once a step, in the form that apply_rotary uses in every layer.
        """
        cos, sin = self.cos_sin[positions].unbind(1)
        return torch.cat((cos, cos), dim=-1).unsqueeze(1), torch.cat((-sin, sin), dim=-1).unsqueeze(1)


def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [num_tokens, num_heads, head_dim] turned by its tokens' angles; computed in float32, returned in x's dtype.

    With x = (a, b) in halves, the turned vector is (a cos - b sin, b cos + a sin) = x cos + (b, a) (-sin, sin), and
    (b, a) is x rolled by half its length: three operations instead of the six of the first form.
    """
    wide = x.float()
    swapped = wide.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(wide * cos, swapped, sin).to(x.dtype)


def rope_frequencies(head_dim: int, rope: dict[str, Any]) -> tuple[torch.Tensor, float]:
    """(inv_freq [head_dim/2] in float32, factor on cos and sin) for a checkpoint's rope_parameters.

    Raises:
        ValueError: an unknown rope_type, with the known ones.
    """
    kind = rope.get("rope_type", "default")
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    inv_freq = 1.0 / (rope["rope_theta"] ** exponents)
    if kind == "default":
        return inv_freq, 1.0
    if kind == "linear":
        return inv_freq / rope["factor"], 1.0
    if kind == "llama3":
        return _llama3(inv_freq, rope), 1.0
    if kind == "yarn":
        return _yarn(inv_freq, head_dim, rope)
    raise ValueError(f"rope_type {kind!r} is not supported; known: default, linear, llama3, yarn")


def _llama3(inv_freq: torch.Tensor, rope: dict[str, Any]) -> torch.Tensor:
    """Llama 3.1's rule: short waves stay, long waves are slowed by `factor`, a ramp joins the two.

    A wave is short if the original context holds more than high_freq_factor periods of it, long if fewer than
    low_freq_factor.
    """
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    periods = rope["original_max_position_embeddings"] * inv_freq / (2 * math.pi)
    keep = ((periods - low) / (high - low)).clamp(0, 1)  # 1: as it was, 0: slowed
    return inv_freq * keep + inv_freq / factor * (1 - keep)


def _yarn(inv_freq: torch.Tensor, head_dim: int, rope: dict[str, Any]) -> tuple[torch.Tensor, float]:
    """YaRN (Peng et al., 2023, arXiv:2309.00071): the ramp runs over dimension indices, and attention is sharpened."""
    factor, theta = rope["factor"], rope["rope_theta"]
    original = rope["original_max_position_embeddings"]

    def dimension_with(periods: float) -> float:
        """The (fractional) index i whose wave fits `periods` times into the original context."""
        return head_dim * math.log(original / (periods * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension_with(rope.get("beta_fast") or 32), dimension_with(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 1e-3)
    keep = 1 - ramp.clamp(0, 1)
    magnitude = rope.get("attention_factor")
    if magnitude is None:
        magnitude = _yarn_magnitude(factor, rope.get("mscale"), rope.get("mscale_all_dim"))
    return inv_freq * keep + inv_freq / factor * (1 - keep), float(magnitude)


def _yarn_magnitude(factor: float, mscale: float | None, mscale_all_dim: float | None) -> float:
    """How much longer q and k get, which makes attention's softmax sharper; grows with the logarithm of `factor`.

    A checkpoint trained with another slope says so in mscale, relative to mscale_all_dim.
    """

    def growth(slope: float) -> float:
        return 0.1 * slope * math.log(factor) + 1.0 if factor > 1 else 1.0

    return growth(mscale) / growth(mscale_all_dim) if mscale and mscale_all_dim else growth(1.0)
