"""The two ends of the vocabulary: token id -> vector (embedding), hidden state -> logits (LM head).

Both are matrices [vocab_size, hidden]. `tie_word_embeddings` decides whether they are the same one:

    tied     logits = h @ E.T      one matrix for both ends: vocab * hidden weights fewer. In Qwen3-0.6B that is
                               156 M; its other weights are 440 M.
    untied   logits = h @ W.T      two matrices: bigger models can afford it, and the two jobs (to stand for a token as
                                   input; to score it as output) need not agree on one vector.

Tied, the same numbers are used in two ways: the embedding reads single rows, the head multiplies by all of them.

vLLM: model_executor/layers/vocab_parallel_embedding.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from folovllm.layers.linear import Linear


class Embedding(nn.Module):
    """Rows of a [vocab_size, hidden] table: ids [num_tokens] -> [num_tokens, hidden]."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size), requires_grad=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(input_ids, self.weight)


class LMHead(Linear):
    """Hidden states [num_rows, hidden] -> logits [num_rows, vocab_size]."""

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__(hidden_size, vocab_size)
        self.tied = False

    def tie_to(self, embedding: Embedding) -> None:
        self.weight = embedding.weight
        self.tied = True

    def untie(self, weight: torch.Tensor) -> None:
        """Take a matrix of its own after all."""
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.tied = False
