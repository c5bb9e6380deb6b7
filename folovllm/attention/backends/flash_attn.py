"""FlashAttention-2 from the flash-attn package, if it is installed: both of its paged functions.

It reads blocks of 256 tokens or a multiple, in float16 and bfloat16, and needs block_size to match.

vLLM: v1/attention/backends/flash_attn.py
"""

from __future__ import annotations

from importlib.util import find_spec

import torch

from folovllm.attention.backend import AttentionBackend
from folovllm.attention.metadata import AttentionMetadata

BLOCK_SIZE = 256


class FlashAttnBackend(AttentionBackend):
    name = "flash_attn"

    def __init__(self, num_heads: int, num_kv_heads: int, head_size: int, scale: float) -> None:
        super().__init__(num_heads, num_kv_heads, head_size, scale)
        self._planned: tuple[AttentionMetadata, torch.Tensor] | None = None

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        if device.type != "cuda":
            return "needs a CUDA device"
        if find_spec("flash_attn") is None:
            return "flash-attn is not installed"
        if torch.cuda.get_device_capability(device) < (8, 0):
            return "needs a GPU of compute capability 8.0 or above"
        return None

    @classmethod
    def only_by_name(cls, device: torch.device) -> bool:
        return True  # the default block_size is 16

    def kv_cache_shape(self, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Raises ValueError for a block_size that flash-attn cannot read."""
        if block_size % BLOCK_SIZE:
            raise ValueError(
                f"block_size must be a multiple of {BLOCK_SIZE} for attention_backend 'flash_attn', got {block_size}"
            )
        return super().kv_cache_shape(num_blocks, block_size)

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        if kv_cache.dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(
                f"dtype must be float16 or bfloat16 for attention_backend 'flash_attn', got "
                f"{str(kv_cache.dtype).removeprefix('torch.')}; 'triton' takes float32, too"
            )
        from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache  # type: ignore[import-not-found]

        queries, (keys, values) = q.to(kv_cache.dtype), kv_cache.unbind(0)
        out = torch.empty_like(queries, memory_format=torch.contiguous_format)
        first = metadata.leading_decodes
        if first:
            attended = flash_attn_with_kvcache(
                queries[:first, None],  # one query of each sequence: [num_seqs, 1, num_heads, head_size]
                keys,
                values,
                cache_seqlens=metadata.seq_lens[:first],
                block_table=metadata.block_tables[:first],
                softmax_scale=self.scale,
                causal=True,
            )
            out[:first] = attended[:, 0]
        if first < len(metadata.seq_lens):
            out[first:] = flash_attn_varlen_func(
                queries[first:],
                keys,
                values,
                cu_seqlens_q=metadata.query_start_loc[first:] - first,
                cu_seqlens_k=self._key_starts(metadata),
                max_seqlen_q=metadata.max_query_len,
                max_seqlen_k=metadata.max_seq_len,
                softmax_scale=self.scale,
                causal=True,
                block_table=metadata.block_tables[first:],
            )
        return out.to(q.dtype)

    def _key_starts(self, metadata: AttentionMetadata) -> torch.Tensor:
        """The running sum of the prefilling sequences' lengths, which flash-attn asks for; computed once a step."""
        if self._planned is None or self._planned[0] is not metadata:
            ends = metadata.seq_lens[metadata.leading_decodes :].cumsum(0, dtype=torch.int32)
            self._planned = metadata, torch.cat([ends.new_zeros(1), ends])
        return self._planned[1]
