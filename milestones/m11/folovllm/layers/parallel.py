"""Layers that are cut between ranks. Two cuts fit together, and one sum is enough for both:

    qkv, gate·up   cut by outputs: a rank computes its heads, or its columns of the MLP, from all of x
    o, down        cut by inputs: a rank multiplies what it has, and the sum over the ranks is the product

         x ──┬─▶ A[:, rank 0] ─▶ B[rank 0, :] ─┐
             └─▶ A[:, rank 1] ─▶ B[rank 1, :] ─┴─▶ (+) = x · A · B

A layer that is cut by outputs is narrower and nothing else, so it has no class here. The ends of the vocabulary are cut
by tokens: one rank has a token's vector, and the others zeros; logits are gathered at rank 0.

Shoeybi et al., 2019, Megatron-LM, arXiv:1909.08053
vLLM: model_executor/layers/linear.py (RowParallelLinear), vocab_parallel_embedding.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
import torch.nn.functional as F

from folovllm.distributed.parallel_state import GroupCoordinator, part
from folovllm.layers.compiled_ops import PackedMethod
from folovllm.layers.linear import Embedding, Linear, LinearMethod, LMHead
from folovllm.layers.moe import block_of

ROWS = ("o_proj", "down_proj")  # cut by inputs


class RowParallelMethod(LinearMethod):
    """Around another method: where a layer has some of a weight's columns, its product is a sum over the ranks.
    Of rows rounded whole (inputs: w8a8, w4a8; weights on loading: w8a8) each rank rounds its part: tokens may differ.

    columns: how many each of ROWS has in all, and those of a layer with experts, which makes one sum for all of them.
    """

    def __init__(self, inner: LinearMethod, group: GroupCoordinator, columns: dict[str, int]) -> None:
        self.inner, self.group, self.columns = inner, group, columns

    def for_layer(self, parent: str, parts: Sequence[str]) -> LinearMethod:
        inner = self.inner.for_layer(parent, parts)
        if parts[0] not in ROWS:
            return inner
        block = block_of(parent)
        inner.columns_together(self.columns[parts[0] if block == "mlp" else block])
        return RowParallelMethod(inner, self.group, self.columns) if block == "mlp" else inner

    def create_weights(self, layer: Linear, *, bias: bool) -> None:
        self.inner.create_weights(layer, bias=bias and self.group.rank == 0)  # a bias is added once

    def checkpoint_slots(self, layer: Linear) -> Iterator[tuple[str, torch.Tensor]]:
        return self.inner.checkpoint_slots(layer)

    def process_weights_after_loading(self, layer: Linear) -> None:
        self.inner.process_weights_after_loading(layer)

    def kernel(self, layer: Linear) -> str:
        return cast(PackedMethod, self.inner).kernel(layer)

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        return self.group.all_reduce(self.inner.apply(layer, x))


class VocabParallelEmbedding(Embedding):
    """Holds the vectors of this rank's tokens."""

    def __init__(self, vocab_size: int, hidden_size: int, group: GroupCoordinator) -> None:
        self.tokens, self.group = part(vocab_size, group.rank, group.world_size), group
        super().__init__(len(self.tokens), hidden_size)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        rows = input_ids - self.tokens.start
        is_mine = (rows >= 0) & (rows < len(self.tokens))
        found = F.embedding(rows.where(is_mine, 0), self.weight)
        return self.group.all_reduce(found.where(is_mine[:, None], 0))


class ParallelLMHead(LMHead):
    """Computes the logits of this rank's tokens; all of them are at rank 0, and the others return no rows."""

    def __init__(self, hidden_size: int, vocab_size: int, method: LinearMethod, group: GroupCoordinator) -> None:
        self.group = group
        self.widths = [len(part(vocab_size, rank, group.world_size)) for rank in range(group.world_size)]
        super().__init__(hidden_size, self.widths[group.rank], method)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.group.gather(super().forward(x), self.widths)
