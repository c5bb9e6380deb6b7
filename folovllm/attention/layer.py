"""The attention layer of a model: writes the new K and V into the cache, then lets the queries read it.

The code that runs the model owns the cache, and binds it here before the first forward. The layer knows neither
sequences nor blocks, only the tensor and the metadata.

vLLM: model_executor/layers/attention/attention.py
"""

from __future__ import annotations

import torch
from torch import nn

from folovllm.attention.backend import AttentionBackend
from folovllm.attention.metadata import AttentionMetadata


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
