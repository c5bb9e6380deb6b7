"""The KV cache: per layer one tensor [2, num_blocks, block_size, num_kv_heads, head_size], reserved before any request.
Where layers are in several groups (kv_cache_groups.py), there is one for layer i of all groups together.

A token costs 2 * num_layers * num_kv_heads * head_size * itemsize bytes: 2 * 28 * 8 * 128 * 2 = 114,688 for
Qwen3-0.6B in bfloat16, so 1,000 tokens are 115 MB. In int8, a scale comes to each token and head.

vLLM: v1/worker/gpu_model_runner.py (initialize_kv_cache)
"""

from __future__ import annotations

import torch

from folovllm.attention.backend import AttentionBackend
from folovllm.attention.backends.int8 import SCALE_BYTES
from folovllm.config import SchedulerConfig
from folovllm.kv_cache_groups import KVCacheGroups, group_layers
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
        groups: KVCacheGroups | None = None,
    ) -> None:
        self.layers, self.groups = model.attention_layers, groups or KVCacheGroups(block_size=block_size)
        self.num_blocks, self.block_size = num_blocks, block_size
        self.tensors: list[torch.Tensor] = []
        """One per layer of a group."""
        made: dict[tuple[object, ...], AttentionBackend] = {}
        of_groups = self.groups.layers or (range(len(self.layers)),)
        places = ((group, *each) for group, numbers in enumerate(of_groups) for each in enumerate(numbers))
        for group, place, number in places:
            layer = self.layers[number]
            kind = (group, layer.num_heads, layer.num_kv_heads, layer.head_size, layer.scale, layer.extras)
            # Layers that compute the same share a backend, and what it works out once a step. Sinks are a layer's own.
            of_layer = made.setdefault((*kind, id(layer.extras.sinks)), layer.make_backend(backend))
            if place == len(self.tensors):
                shape = of_layer.kv_cache_shape(num_blocks, block_size)
                # Not cleared: no token is ever read before it has been written.
                on_cpu = device.type == "cpu"
                tensor = empty_in_huge_pages(shape, dtype) if on_cpu else torch.empty(shape, dtype=dtype, device=device)
                self.tensors.append(tensor)
            layer.bind(of_layer, self.tensors[place], group)
        self.backend = next(iter(made.values()))
        """The first layer's."""

    def warm_up(self, dtype: torch.dtype) -> None:
        """Compile what layers need. dtype: of their queries."""
        for layer in {each.extras: each for each in self.layers}.values():  # on CUDA they are alike else
            assert layer.backend is not None
            assert layer.kv_cache is not None  # bound
            layer.backend.warm_up(layer.kv_cache, dtype)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


def kv_cache_groups(
    spec: ModelSpec, limits: SchedulerConfig, block_size: int, *, one_table: bool = False, has_draft: bool = False
) -> KVCacheGroups:
    """one_table: see group_layers(). has_draft: a draft model reads the first table, and needs all keys."""
    chunk = limits.long_prefill_token_threshold or limits.max_num_batched_tokens
    return group_layers(() if has_draft else spec.windows, spec.kv_heads, block_size, chunk, one_table=one_table)


def kv_bytes_per_token(spec: ModelSpec, dtype: torch.dtype, groups: KVCacheGroups | None = None) -> int:
    """Keys and values of one token in all layers; in those of one group, where there are several."""
    scale_bytes = SCALE_BYTES if dtype == torch.int8 else 0
    of_layers = [2 * num_heads * (size * dtype.itemsize + scale_bytes) for num_heads, size in spec.kv_heads]
    if groups is None or len(groups.windows) == 1:
        return sum(of_layers)
    return max(map(len, groups.layers)) * of_layers[0]  # several groups have equal layers
