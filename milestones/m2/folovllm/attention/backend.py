"""The attention layer of a model, and the interface of the backends that compute it.

A backend owns two things: the cache's layout of K and V, and how queries read them. Everything else (which sequence
owns which block, when one is freed) is decided elsewhere and reaches it as AttentionMetadata. The layer knows neither
sequences nor blocks: the code that runs the model owns the cache, and binds it before the first forward.

vLLM: v1/attention/backend.py, model_executor/layers/attention/attention.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn

from folovllm.attention.metadata import AttentionMetadata


class AttentionBackend(ABC):
    """Stateless but for the shape of the heads; one instance serves all layers of a model."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_size: int, scale: float) -> None:
        self.num_heads, self.num_kv_heads, self.head_size, self.scale = num_heads, num_kv_heads, head_size, scale
        self.group_size = num_heads // num_kv_heads  # query heads that share one KV head

    def kv_cache_shape(self, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Shape of one layer's cache; index 0 of the first dimension is K, 1 is V."""
        return (2, num_blocks, block_size, self.num_kv_heads, self.head_size)

    def write(self, k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Store k, v [num_tokens, num_kv_heads, head_size] at their slots."""
        flat = kv_cache.view(2, -1, self.num_kv_heads, self.head_size)  # blocks end to end: a slot is a row
        flat[0].index_copy_(0, slot_mapping, k.to(kv_cache.dtype))
        flat[1].index_copy_(0, slot_mapping, v.to(kv_cache.dtype))

    @abstractmethod
    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        """Causal attention of q [num_tokens, num_heads, head_size] over each sequence's cache; same shape out.

        The new tokens' K and V have been written already. Query j of a sequence with m queries and n keys is at
        position n - m + j and sees keys 0 .. n - m + j.
        """


class Attention(nn.Module):
    """Attention of one decoder layer. `kv_cache` and `backend` are set by bind()."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_size: int) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_size = num_heads, num_kv_heads, head_size
        self.scale = head_size**-0.5
        self.backend: AttentionBackend | None = None
        self.kv_cache: torch.Tensor | None = None

    def bind(self, backend: AttentionBackend, kv_cache: torch.Tensor) -> None:
        self.backend, self.kv_cache = backend, kv_cache

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        """q [num_tokens, num_heads, head_size], k and v [num_tokens, num_kv_heads, head_size] -> q's shape."""
        if self.backend is None or self.kv_cache is None:
            raise RuntimeError("the attention layer has no KV cache: call bind() before the first forward")
        self.backend.write(k, v, self.kv_cache, metadata.slot_mapping)
        return self.backend.forward(q, self.kv_cache, metadata)
