"""RMSNorm: scale a vector to unit root mean square, then by a learned weight.

    y_i = x_i / sqrt(mean(x^2) + eps) * w_i        (Zhang and Sennrich, 2019, arXiv:1910.07467)

LayerNorm also subtracts the mean; leaving that out costs nothing in quality and saves a pass over x.

vLLM: model_executor/layers/layernorm.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import nn

Norm = Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor, float], tuple[torch.Tensor, torch.Tensor]]


def rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm(x + residual), x + residual): what the next layer reads, and the residual stream itself.

    Both are one function, because a fused kernel can compute them in one pass over memory. The mean is taken in
    float32 whatever x's dtype.
    """
    residual = x if residual is None else x + residual
    return F.rms_norm(residual, weight.shape, weight, eps), residual


class RMSNorm(nn.Module):
    """Normalises the last dimension, of `size` elements, as `norm` computes it."""

    def __init__(self, size: int, eps: float, norm: Norm = rms_norm) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps, self.norm = eps, norm

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """What rms_norm() returns; `residual` may be written over."""
        return self.norm(x, residual, self.weight, self.eps)


class QKNorm(nn.Module):
    """The weights of the norm of each head of q and k: one for all heads of q, one for all heads of k (Qwen3)."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2, head_size), requires_grad=False)
        self.eps, self.repeats = eps, (num_heads, num_kv_heads)

    def checkpoint_slots(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name below this layer's parent, the view it fills)."""
        yield "q_norm.weight", self.weight.data[0]
        yield "k_norm.weight", self.weight.data[1]

    @cached_property
    def per_head(self) -> torch.Tensor:
        """[num_heads + num_kv_heads, head_size], q's heads first: the heads are side by side as the stacked projection
        leaves them, so one pass serves both. Made at the first step, when the weights are there."""
        q, k = (weight.expand(count, -1) for weight, count in zip(self.weight, self.repeats, strict=True))
        return torch.cat((q, k))
