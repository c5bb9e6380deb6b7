"""The KV cache: per layer one tensor [2, num_blocks, block_size, num_kv_heads, head_size], reserved before any request.

A token costs 2 * num_layers * num_kv_heads * head_size * itemsize bytes: 2 * 28 * 8 * 128 * 2 = 114,688 for
Qwen3-0.6B in bfloat16, so 1,000 tokens are 115 MB. In int8, a scale comes to each token and head.

vLLM: v1/worker/gpu_model_runner.py (initialize_kv_cache)
"""

from __future__ import annotations

import torch

from folovllm.attention.backend import AttentionBackend
from folovllm.attention.backends.int8 import SCALE_BYTES
from folovllm.models.decoder import DecoderForCausalLM, DecoderSpec
from folovllm.utils.recycled_memory import empty_in_huge_pages


class KVCache:
    """Owns the tensors and binds them to the model's attention layers."""

    def __init__(
        self,
        model: DecoderForCausalLM,
        backend: type[AttentionBackend],
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layers = model.attention_layers
        first = self.layers[0]
        self.backend = backend(first.num_heads, first.num_kv_heads, first.head_size, first.scale)
        self.num_blocks, self.block_size = num_blocks, block_size
        shape = self.backend.kv_cache_shape(num_blocks, block_size)
        for layer in self.layers:
            # Not cleared: no token is ever read before it has been written.
            on_cpu = device.type == "cpu"
            tensor = empty_in_huge_pages(shape, dtype) if on_cpu else torch.empty(shape, dtype=dtype, device=device)
            layer.bind(self.backend, tensor)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """One per layer."""
        return [layer.kv_cache for layer in self.layers if layer.kv_cache is not None]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


def kv_bytes_per_token(spec: DecoderSpec, dtype: torch.dtype) -> int:
    """Keys and values of one token in all layers."""
    head_bytes = spec.head_size * dtype.itemsize + (SCALE_BYTES if dtype == torch.int8 else 0)
    return 2 * spec.num_layers * spec.num_kv_heads * head_bytes
