"""One contiguous KV cache for the sequence that runs.

Per layer a tensor [2, 1, capacity, num_kv_heads, head_size]: K and V of every position that the sequence can reach,
reserved before its first token. A step writes its rows in place; nothing is ever concatenated.

A token costs 2 * num_layers * num_kv_heads * head_size * itemsize bytes: 2 * 28 * 8 * 128 * 2 = 114,688 for
Qwen3-0.6B in bfloat16, so 1,000 tokens are 115 MB.

vLLM: none
"""

from __future__ import annotations

import torch

from folovllm.attention.backend import AttentionBackend
from folovllm.models.decoder import DecoderForCausalLM


class ContiguousKVCache:
    """Owns the tensors and binds them to the model's attention layers."""

    def __init__(
        self,
        model: DecoderForCausalLM,
        backend: type[AttentionBackend],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layers = model.attention_layers
        first = self.layers[0]
        self.backend = backend(first.num_heads, first.num_kv_heads, first.head_size, first.scale)
        self.dtype, self.device = dtype, device
        self.capacity = 0

    def reserve(self, num_tokens: int) -> None:
        """Make room for one sequence of up to `num_tokens`. What the last sequence left is overwritten, not cleared."""
        if num_tokens <= self.capacity:
            return
        self.capacity = 0  # until all layers have theirs: memory may run out on the way
        shape = self.backend.kv_cache_shape(num_blocks=1, block_size=num_tokens)
        for layer in self.layers:
            layer.kv_cache = None  # the old tensor goes before its successor comes
            layer.bind(self.backend, torch.empty(shape, dtype=self.dtype, device=self.device))
        self.capacity = num_tokens

    @property
    def num_bytes(self) -> int:
        return sum(layer.kv_cache.nbytes for layer in self.layers if layer.kv_cache is not None)
