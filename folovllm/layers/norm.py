"""RMSNorm: scale a vector to unit root mean square, then by a learned weight.

    y_i = x_i / sqrt(mean(x^2) + eps) * w_i        (Zhang and Sennrich, 2019, arXiv:1910.07467)

LayerNorm also subtracts the mean; leaving that out costs nothing in quality and saves a pass over x.

vLLM: model_executor/layers/layernorm.py
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    """Normalises the last dimension, of `size` elements; reduces in float32 whatever x's dtype."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)

    def add_and_norm(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm(x + residual), x + residual): what the next layer reads, and the residual stream itself.

        Both are one method, because a fused kernel can compute them in one pass over memory.
        """
        residual = x if residual is None else x + residual
        return self.forward(residual), residual


class QKNorm(RMSNorm):
    """RMSNorm of each head of q and k: one weight for all heads of q, one for all heads of k (Qwen3).

    The heads lie side by side as the stacked projection leaves them, so one pass serves both.
    """

    def __init__(self, num_heads: int, num_kv_heads: int, head_size: int, eps: float) -> None:
        super().__init__(head_size, eps)
        self.weight = nn.Parameter(torch.empty(2, head_size), requires_grad=False)
        self.repeats = (num_heads, num_kv_heads)
        self._per_head: torch.Tensor | None = None

    def checkpoint_slots(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name below this layer's parent, the view it fills)."""
        yield "q_norm.weight", self.weight.data[0]
        yield "k_norm.weight", self.weight.data[1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_tokens, num_heads + num_kv_heads, head_size], q's heads first."""
        if self._per_head is None:  # made at the first forward, when the weights are there
            q, k = (w.expand(n, -1) for w, n in zip(self.weight, self.repeats, strict=True))
            self._per_head = torch.cat((q, k))
        return F.rms_norm(x, x.shape[-1:], None, self.eps) * self._per_head
