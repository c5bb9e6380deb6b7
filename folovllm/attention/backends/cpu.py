"""Paged attention on a CPU with kernels of our own: K and V are read where they lie, nothing is gathered or padded.

    write      store_kv   K and V in one call
    forward    decode     every sequence with one query, in one call
               prefill    every other, in one call

vLLM: v1/attention/backends/cpu_attn.py
"""

from __future__ import annotations

import torch

from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.kernels.cpu import DTYPES, HEAD_SIZE_STEP, decode, prefill, store_kv
from folovllm.attention.metadata import AttentionMetadata
from folovllm.utils.cpu_kernels import unavailable_reason
from folovllm.utils.recycled_memory import RESULTS


class Lists:
    """The sequences of a step, those with one query and the others, the same in every layer."""

    decodes_apart = True
    """Whether one query is decode()'s; else it is prefill()'s, as several are."""

    def __init__(self, metadata: AttentionMetadata) -> None:
        self.metadata = metadata
        decodes, prefills = [], []
        for seq, (start, end, _) in enumerate(metadata.spans):
            if end - start == 1 and self.decodes_apart:
                decodes.append((start, seq))
            elif end > start:
                prefills.append((start, end, seq))
        self.queries = torch.tensor([start for start, _ in decodes], dtype=torch.int64)
        self.decodes = torch.tensor([seq for _, seq in decodes], dtype=torch.int64)
        self.spans = torch.tensor([(start, end) for start, end, _ in prefills], dtype=torch.int64)
        self.prefills = torch.tensor([seq for _, _, seq in prefills], dtype=torch.int64)
        self.seq_lens, self.block_tables = metadata.seq_lens.contiguous(), metadata.block_tables.contiguous()


class CPUBackend(PagedTorchBackend):
    """Float32 queries on a float32 or bfloat16 cache, or both bfloat16; heads of a multiple of 16. Whatever else comes
    is read as PagedTorchBackend reads it."""

    name = "cpu"
    lists_class = Lists

    def __init__(self, num_heads: int, num_kv_heads: int, head_size: int, scale: float) -> None:
        super().__init__(num_heads, num_kv_heads, head_size, scale)
        self._lists: Lists | None = None

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        return "runs on CPU only" if device.type != "cpu" else unavailable_reason()

    def write(self, k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        if self._suits(k, kv_cache) and self._suits(v, kv_cache):
            store_kv(k, v, kv_cache, slot_mapping)
        else:
            super().write(k, v, kv_cache, slot_mapping)

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        if not self._suits(q, kv_cache):
            return super().forward(q, kv_cache, metadata)
        lists, out = self.lists(metadata), RESULTS.empty(q.shape, q.dtype)
        where = (lists.seq_lens, lists.block_tables, self.scale, out)
        if len(lists.decodes):
            decode(q, kv_cache, lists.queries, lists.decodes, *where)
        if len(lists.prefills):
            prefill(q, kv_cache, lists.spans, lists.prefills, *where)
        return out

    def lists(self, metadata: AttentionMetadata) -> Lists:
        """Made once a step."""
        if self._lists is None or self._lists.metadata is not metadata:
            self._lists = self.lists_class(metadata)
        return self._lists

    def _suits(self, x: torch.Tensor, kv_cache: torch.Tensor) -> bool:
        whole_heads = x.stride(2) == 1 and x.stride(1) == self.head_size
        return whole_heads and self.head_size % HEAD_SIZE_STEP == 0 and (x.dtype, kv_cache.dtype) in DTYPES
