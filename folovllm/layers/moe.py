"""Mixture of experts: of many MLPs in a layer, each token goes through the few that a router chooses for it.

    x ─ gate ─ softmax ─ top k ─▶ weights, experts [num_tokens, k]

    token 0 ─▶ 2, 0       sorted by expert    0: token 0, token 1      one product for all rows of an expert
    token 1 ─▶ 0, 3                           2: token 0
                                              3: token 1
    put back   out[token] = Σ weight * expert(x[token]), in the order in which the router named them

An expert that no token chose is not read. That is the point: the model has the weights of all experts, and a step pays
for those that it reads.

Jacobs et al., 1991; Shazeer et al., 2017 (arXiv:1701.06538); Mixtral, 2024 (arXiv:2401.04088).
vLLM: model_executor/layers/fused_moe/ (layer.py, fused_moe.py), model_executor/models/qwen3_moe.py, mixtral.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from folovllm.distributed.parallel_state import GroupCoordinator
from folovllm.layers.linear import Linear, LinearMethod


@dataclass(frozen=True)
class ExpertsSpec:
    """The sparse layers of a decoder, read off a Hugging Face configuration by models/registry.py."""

    num_experts: int
    top_k: int
    size: int
    """Of an expert's middle, as intermediate_size is an MLP's."""
    renormalize: bool
    """The weights of the chosen experts are divided by their sum."""
    layers: frozenset[int]
    """The others have one MLP for every token."""
    shared_size: int = 0
    """Of an MLP beside the experts that every token goes through (Qwen2-MoE)."""

    def experts_read(self, num_tokens: int) -> float:
        """Of a layer, by a step of so many tokens, on average, if the router chose at random: a token misses an expert
        with probability 1 - k/n, and an expert is not read where all of them miss it."""
        return self.num_experts * (1 - (1 - self.top_k / self.num_experts) ** num_tokens)

    @property
    def sizes(self) -> dict[str, int]:
        """Middle sizes of its MLPs, by the part of their names in a checkpoint: see block_of()."""
        return {"experts": self.size} | ({"shared_expert": self.shared_size} if self.shared_size else {})


def block_of(name: str) -> str:
    """Which kind of MLP the tensor or layer "model.layers.0.mlp.experts.7.down_proj" belongs to: "mlp" is a whole
    layer's."""
    return next((block for block in ("experts", "shared_expert") if f".{block}." in f"{name}."), "mlp")


class Routing(NamedTuple):
    """Where each token goes, [num_tokens, k], the highest weight first."""

    weights: torch.Tensor
    """float32"""
    experts: torch.Tensor
    """int64"""


class Groups(NamedTuple):
    """The pairs (token, one of its experts), numbered token * k + place, side by side by expert."""

    order: torch.Tensor
    """int64 [num_tokens * k]: the pairs in this order; those of one expert by their token."""
    ends: torch.Tensor
    """int64 [num_experts]: where each expert's pairs end in `order`."""


def route(logits: torch.Tensor, top_k: int, *, renormalize: bool) -> Routing:
    """The experts with the `top_k` highest of `logits` [num_tokens, num_experts]; of equal ones the lower number.

    torch.topk leaves open which of equal ones it takes, so it might depend on the batch.
    """
    weights, experts = torch.softmax(logits, -1, dtype=torch.float32).sort(dim=-1, descending=True, stable=True)
    weights, experts = weights[:, :top_k], experts[:, :top_k]
    if renormalize:
        weights = weights / weights.cumsum(-1)[:, -1:]  # a sum in one order, whatever the batch
    return Routing(weights, experts)


def group(experts: torch.Tensor, num_experts: int) -> Groups:
    """Sort the pairs by expert. Nothing is asked of the device: no size depends on what was chosen."""
    chosen, order = experts.flatten().sort(stable=True)
    return Groups(order, torch.searchsorted(chosen, torch.arange(num_experts, device=chosen.device), right=True))


def put_back(rows: torch.Tensor, groups: Groups, weights: torch.Tensor) -> torch.Tensor:
    """`rows` [num_tokens * k, hidden] in the order of `groups` -> each token's weighted sum [num_tokens, hidden].

    The k numbers are added one after the other: a token's bits do not depend on who shared its experts.
    """
    back = torch.empty_like(rows)
    back[groups.order] = rows
    parts = (back.unflatten(0, weights.shape) * weights.unsqueeze(2)).unbind(1)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total.to(rows.dtype)


class Experts(nn.ModuleList):
    """All experts of a layer, by number. `forward`: one after the other, those that have rows."""

    route = staticmethod(route)
    """Who has kernels for the products has one for the choice, too."""

    def __init__(self, count: int, make: Callable[[int], nn.Module]) -> None:
        super().__init__(map(make, range(count)))

    def forward(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        groups = group(routing.experts, len(self))
        rows, ends = x[groups.order // routing.experts.shape[1]], groups.ends.tolist()
        spans = zip(self, [0, *ends], ends, strict=False)
        done = [expert(rows[start:end]) for expert, start, end in spans if end > start]
        return put_back(torch.cat(done), groups, routing.weights)


class SparseMoE(nn.Module):
    """
    Args:
        mlp: makes an MLP of a middle size; the name is where its tensors are in the checkpoint.
        method: of the two products that decide, in float32 and never quantised: they are small.
        group: of the ranks that have some columns of each MLP. They compute the same routing, and make one sum.
    """

    def __init__(
        self, spec: ExpertsSpec, hidden_size: int, mlp: Callable[[int, str], nn.Module],
        experts: Callable[[int, Callable[[int], nn.Module]], Experts], method: LinearMethod, name: str,
        group: GroupCoordinator | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.spec, self.group = spec, group
        self.gate = Linear(hidden_size, spec.num_experts, method=method).float()
        self.experts = experts(spec.num_experts, lambda number: mlp(spec.size, f"{name}.experts.{number}"))
        self.shared_expert = self.shared_expert_gate = None
        if spec.shared_size:
            self.shared_expert = mlp(spec.shared_size, f"{name}.shared_expert")
            self.shared_expert_gate = Linear(hidden_size, 1, method=method).float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        routing = self.experts.route(self.gate(wide), self.spec.top_k, renormalize=self.spec.renormalize)
        out = self.experts(x, routing)
        if self.shared_expert is not None and self.shared_expert_gate is not None:
            out = out + (torch.sigmoid(self.shared_expert_gate(wide)) * self.shared_expert(x)).to(x.dtype)
        return out if self.group is None else self.group.all_reduce(out)
