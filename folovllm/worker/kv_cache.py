"""The KV cache: per layer one tensor [2, num_blocks, block_size, num_kv_heads, head_size], reserved before any request.

A token costs 2 * num_layers * num_kv_heads * head_size * itemsize bytes: 2 * 28 * 8 * 128 * 2 = 114,688 for
Qwen3-0.6B in bfloat16, so 1,000 tokens are 115 MB. In int8, a scale comes to each token and head.

vLLM: v1/worker/gpu_model_runner.py (initialize_kv_cache)
"""

from __future__ import annotations

import torch

from folovllm.attention.backend import AttentionBackend
from folovllm.attention.backends.int8 import SCALE_BYTES
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.registry import ModelSpec
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
        self.num_blocks, self.block_size = num_blocks, block_size
        made: dict[tuple[object, ...], AttentionBackend] = {}
        for layer in self.layers:
            kind = (layer.num_heads, layer.num_kv_heads, layer.head_size, layer.scale, layer.extras)
            # Layers that compute the same share a backend, and what it works out once a step. Sinks are a layer's own.
            of_layer = made.setdefault((*kind, id(layer.extras.sinks)), layer.make_backend(backend))
            shape = of_layer.kv_cache_shape(num_blocks, block_size)
            # Not cleared: no token is ever read before it has been written.
            on_cpu = device.type == "cpu"
            tensor = empty_in_huge_pages(shape, dtype) if on_cpu else torch.empty(shape, dtype=dtype, device=device)
            layer.bind(of_layer, tensor)
        self.backend = next(iter(made.values()))
        """The first layer's."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        """One per layer."""
        return [layer.kv_cache for layer in self.layers if layer.kv_cache is not None]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


def kv_bytes_per_token(spec: ModelSpec, dtype: torch.dtype) -> int:
    """Keys and values of one token in all layers."""
    scale_bytes = SCALE_BYTES if dtype == torch.int8 else 0
    return 2 * sum(num_heads * (size * dtype.itemsize + scale_bytes) for num_heads, size in spec.kv_heads)
