"""What the tests of experts share: random routings, and what a layer of experts is, written down token by token."""

from __future__ import annotations

import torch
from torch import nn

from folovllm.layers.linear import Linear
from folovllm.layers.moe import Routing, route

KINDS = ("qwen3_moe", "qwen2_moe", "mixtral")


def random_routing(num_tokens: int, num_experts: int, top_k: int, seed: int = 0) -> Routing:
    logits = torch.randn(num_tokens, num_experts, generator=torch.Generator().manual_seed(seed))
    return route(logits, top_k, renormalize=True)


class Weights(nn.Module):
    """An expert by two random matrices, as our MLP names them."""

    def __init__(self, hidden: int, size: int, seed: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.gate_up_proj, self.down_proj = Linear(hidden, 2 * size), Linear(size, hidden)
        for product in (self.gate_up_proj, self.down_proj):
            noise = 0.3 * torch.randn(product.weight.shape, generator=generator)
            product.weight = nn.Parameter(noise.to(dtype), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(torch.nn.functional.silu(gate) * up)


def by_hand(experts: nn.ModuleList, x: torch.Tensor, routing: Routing) -> torch.Tensor:
    """One token after the other, through one of its experts after the other, in float64."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token, (weights, chosen) in enumerate(zip(*routing, strict=True)):
        for weight, number in zip(weights.tolist(), chosen.tolist(), strict=True):
            expert = experts[number]
            gate, up = (expert.gate_up_proj.weight.double() @ x[token].double()).chunk(2)
            out[token] += weight * (expert.down_proj.weight.double() @ (gate * gate.sigmoid() * up))
    return out
