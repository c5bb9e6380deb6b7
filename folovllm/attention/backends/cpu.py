"""Paged attention on a CPU with kernels of our own where they are faster: a decode reads K and V where they lie.

    write      store_kv     K and V in one call
    forward    decode       every sequence with one query, in one call: nothing is gathered, nothing is padded
               paged_torch  the others: with many queries a gather is a small part of the work

vLLM: v1/attention/backends/cpu_attn.py
"""

from __future__ import annotations

import torch

from folovllm.attention.backends.paged_torch import PagedTorchBackend, Plan
from folovllm.attention.kernels.cpu import DTYPES, HEAD_SIZE_STEP, decode, store_kv
from folovllm.attention.metadata import AttentionMetadata
from folovllm.utils.cpu_kernels import unavailable_reason


class PlanOfOthers(Plan):
    """The plan of the sequences that are not decodes, and a list of those that are."""

    def __init__(self, metadata: AttentionMetadata, kv_cache: torch.Tensor) -> None:
        super().__init__(metadata, kv_cache)
        self.order = torch.empty(0, dtype=torch.int64)
        decodes = [(start, seq) for seq, (start, end, _) in enumerate(metadata.spans) if end - start == 1]
        self.queries = torch.tensor([start for start, _ in decodes], dtype=torch.int64)
        self.seqs = torch.tensor([seq for _, seq in decodes], dtype=torch.int64)
        self.seq_lens, self.block_tables = metadata.seq_lens.contiguous(), metadata.block_tables.contiguous()

    def _read_together(self, batch: list[int]) -> None:
        pass

    def _read_alone(self, seq: int) -> None:
        start, end, _ = self._metadata.spans[seq]
        if end - start > 1:
            super()._read_alone(seq)


class CPUBackend(PagedTorchBackend):
    """Float32 queries on a float32 or bfloat16 cache, or both bfloat16; heads of a multiple of 16. Whatever else comes
    is read as PagedTorchBackend reads it."""

    name = "cpu"

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
        if not isinstance(self._plan, PlanOfOthers) or not self._plan.matches(metadata, kv_cache):
            self._plan = PlanOfOthers(metadata, kv_cache)
        plan = self._plan
        if plan.alone:
            out = super().forward(q, kv_cache, metadata)
        else:
            out = torch.empty_like(q, memory_format=torch.contiguous_format)
        if len(plan.queries):
            decode(q, kv_cache, plan.queries, plan.seqs, plan.seq_lens, plan.block_tables, self.scale, out)
        return out

    def _suits(self, x: torch.Tensor, kv_cache: torch.Tensor) -> bool:
        whole_heads = x.stride(2) == 1 and x.stride(1) == self.head_size
        return whole_heads and self.head_size % HEAD_SIZE_STEP == 0 and (x.dtype, kv_cache.dtype) in DTYPES
