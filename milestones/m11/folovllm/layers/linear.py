"""Layers that are one matrix: linear layers, the embedding and the LM head.

A linear layer has one weight and one product, even where the checkpoint stores several. q, k and v are computed from
the same input, and so are gate and up. Stacking their weights turns three (two) reads of the input and three (two)
kernel launches into one, at no cost: the outputs come out side by side.

    checkpoint   q_proj [Hq*D, E]   k_proj [Hkv*D, E]   v_proj [Hkv*D, E]
    here         weight [(Hq + 2*Hkv)*D, E]      rows: |---- q ----|- k -|- v -|

The two ends of the vocabulary are matrices [vocab_size, hidden]: token id -> vector (embedding), hidden state -> logits
(LM head). `tie_word_embeddings` decides whether they are the same one:

    tied     logits = h @ E.T      one matrix for both ends: vocab * hidden weights fewer. In Qwen3-0.6B that is
                               156 M; its other weights are 440 M.
    untied   logits = h @ W.T      two matrices: bigger models can afford it, and the two jobs (to represent a token as
                                   input; to score it as output) need not agree on one vector.

vLLM: model_executor/layers/linear.py, model_executor/layers/vocab_parallel_embedding.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import nn


class LinearMethod:
    """How a linear layer keeps its weight and multiplies by it: as the checkpoint has it, by torch.

    vLLM: LinearMethodBase, UnquantizedLinearMethod
    """

    def for_layer(self, parent: str, parts: Sequence[str]) -> LinearMethod:
        """That of one layer: `parts` are its tensors' names in the checkpoint below "`parent`."."""
        return self

    def columns_together(self, in_features: int) -> int:
        """Of how many columns the parts must be into which ranks cut a weight of so many columns in all."""
        return 1

    def create_weights(self, layer: Linear, *, bias: bool) -> None:
        """Parameters with nothing in them, which the checkpoint will fill."""
        layer.weight = nn.Parameter(torch.empty(layer.out_features, layer.in_features), requires_grad=False)
        layer.bias = nn.Parameter(torch.empty(layer.out_features), requires_grad=False) if bias else None

    def checkpoint_slots(self, layer: Linear) -> Iterator[tuple[str, torch.Tensor]]:
        """See Linear.checkpoint_slots."""
        for kind, tensor in (("weight", layer.weight), ("bias", layer.bias)):
            if tensor is not None:
                for name, view in zip(layer.parts, tensor.split(list(layer.parts.values())), strict=True):
                    yield (f"{name}.{kind}" if name else kind), view

    def process_weights_after_loading(self, layer: Linear) -> None:
        """The weight has been loaded: bring it into the layout that apply() reads."""

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, layer.weight, layer.bias)


PLAIN = LinearMethod()


class Linear(nn.Module):
    """`y = x @ weight.T + bias` for x [num_tokens, in_features].

    Args:
        parts: output features of each checkpoint tensor that is stacked here, by its name there, in stacking order.
            A plain layer has one part, named "" (its tensors are called just "weight" and "bias").
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self, in_features: int, parts: dict[str, int] | int, *, bias: bool = False, method: LinearMethod = PLAIN
    ) -> None:
        super().__init__()
        self.parts = {"": parts} if isinstance(parts, int) else dict(parts)
        self.in_features, self.out_features = in_features, sum(self.parts.values())
        self.method = method
        method.create_weights(self, bias=bias)

    def checkpoint_slots(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name below this layer's parent, the view it fills) for each tensor that the checkpoint holds."""
        return self.method.checkpoint_slots(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.method.apply(self, x)


class Embedding(nn.Module):
    """Rows of a [vocab_size, hidden] table: ids [num_tokens] -> [num_tokens, hidden]."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size), requires_grad=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(input_ids, self.weight)


class LMHead(Linear):
    """Hidden states [num_rows, hidden] -> logits [num_rows, vocab_size]."""

    def __init__(self, hidden_size: int, vocab_size: int, method: LinearMethod = PLAIN) -> None:
        super().__init__(hidden_size, vocab_size, method=method)
        self.tied = False

    def tie_to(self, embedding: Embedding) -> None:
        self.weight = embedding.weight
        self.tied = True

    def untie(self, weight: torch.Tensor) -> None:
        """Use `weight` instead of the embedding's."""
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.tied = False
