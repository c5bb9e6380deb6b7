"""RMSNorm: scale a vector to unit root mean square, then by a learned weight.

    y_i = x_i / sqrt(mean(x^2) + eps) * w_i        (Zhang and Sennrich, 2019, arXiv:1910.07467)

LayerNorm also subtracts the mean; leaving that out costs nothing in quality and saves a pass over x.

vLLM: model_executor/layers/layernorm.py
"""

from __future__ import annotations

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
        """(norm(x + residual), x + residual): the residual stream and its normalised view, which a layer reads.

        Adding and normalising belong together because a fused kernel can do both in one pass over memory.
        """
        residual = x if residual is None else x + residual
        return self.forward(residual), residual
