"""Hugging Face's KV cache, with keys and values rounded to int8 codes and back: what kv_cache_dtype="int8" means."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Each head's numbers [..., head_size] as whole numbers from -127 to 127 times a 127th of the largest in size."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.where(scale > 0, (x / scale).round() * scale, 0.0)


class RoundedCache(DynamicCache):
    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return super().update(rounded(key_states), rounded(value_states), *args, **kwargs)
