"""Linear layers: one weight, one product, even where the checkpoint stores several.

q, k and v are computed from the same input, and so are gate and up. Stacking their weights turns three (two) reads of
the input and three (two) kernel launches into one, at no cost: the outputs come out side by side.

    checkpoint   q_proj [Hq*D, E]   k_proj [Hkv*D, E]   v_proj [Hkv*D, E]
    here         weight [(Hq + 2*Hkv)*D, E]      rows: |---- q ----|- k -|- v -|

vLLM: model_executor/layers/linear.py
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn


class Linear(nn.Module):
    """`y = x @ weight.T + bias` for x [num_tokens, in_features].

    Args:
        parts: output features of each checkpoint tensor that is stacked here, by its name there, in stacking order.
            A plain layer has one part, named "" (its tensors are called just "weight" and "bias").
    """

    def __init__(self, in_features: int, parts: dict[str, int] | int, *, bias: bool = False) -> None:
        super().__init__()
        self.parts = {"": parts} if isinstance(parts, int) else dict(parts)
        out_features = sum(self.parts.values())
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None

    def checkpoint_slots(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name below this layer's parent, the view it fills) for each tensor that the checkpoint holds."""
        for kind, tensor in (("weight", self.weight), ("bias", self.bias)):
            if tensor is not None:
                for name, view in zip(self.parts, tensor.split(list(self.parts.values())), strict=True):
                    yield (f"{name}.{kind}" if name else kind), view

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)
