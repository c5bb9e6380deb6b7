"""Attention whose bits depend on what a query sees and on nothing else: one list of queries, one tile, one order.

Decodes go to our own kernel for prompts, on both devices. So a token that is decoded is a prompt of one query, and
whether it came by a prefill, by a chunk or by a decode changes no bit:

    CPU     csrc/prefill.cpp reads the keys of a sequence in tiles that begin at the same positions for every query, and
            adds them up row by row
    CUDA    paged_prefill has one tile of 64 rows (32 in float32) for one query as for a thousand. A query's rows in it
            follow from its position, not from where a chunk begins

Tiles of keys come from the first on and are never split; what a longer neighbour in a tile sees has weight zero. The
price: nothing divides the keys of a long sequence among threads or programs, and a decode computes a whole tile for the
few rows that it needs.

vLLM: v1/attention/backends/triton_attn.py under VLLM_BATCH_INVARIANT
"""

from __future__ import annotations

import torch

from folovllm.attention.backends.cpu import CPUBackend, Lists
from folovllm.attention.backends.triton import TritonBackend
from folovllm.attention.metadata import AttentionMetadata


class OneList(Lists):
    decodes_apart = False


class CPUInvariantBackend(CPUBackend):
    name = "cpu_invariant"
    lists_class = OneList

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        return super().forward(q if self._suits(q, kv_cache) else q.contiguous(), kv_cache, metadata)


class TritonInvariantBackend(TritonBackend):
    name = "triton_invariant"
    supports_fused_decode = False
    supports_prompt_graphs = False  # it does not take decodes apart

    def warm_up(self, kv_cache: torch.Tensor, dtype: torch.dtype | None = None) -> None:
        """One token in block 0: every launch is of the same kernel."""
        q, step = self.one_token(kv_cache, dtype)
        self.forward(q, kv_cache, step)

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        from folovllm.attention.kernels.paged_prefill import paged_prefill

        keys, values = kv_cache.unbind(0)
        tables, starts, lens = metadata.block_tables, metadata.query_start_loc, metadata.seq_lens
        return paged_prefill(
            q, keys, values, tables, starts, lens, metadata.max_query_len, self.scale, batch_invariant=True,
            extras=self.extras,
        )  # fmt: skip
