"""Attention on a GPU before compute capability 8.0, such as a free notebook's T4: our kernel for decodes, torch for
prompts.

Triton multiplies a tile by the threads there, without matrix units. A decode waits for memory anyway. A prompt's tiles
would take more registers and shared memory than there are, and torch's attention has kernels for such a GPU.

vLLM: none
"""

from __future__ import annotations

from dataclasses import replace

import torch

from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.backends.triton import TritonBackend, kernels_unavailable_reason
from folovllm.attention.metadata import AttentionMetadata


class TuringBackend(TritonBackend, PagedTorchBackend):
    name = "turing"
    supports_fused_decode = False
    supports_prompt_graphs = False

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        return kernels_unavailable_reason(device)

    def warm_up(self, kv_cache: torch.Tensor, dtype: torch.dtype | None = None) -> None:
        self.warm_up_decode(*self.one_token(kv_cache, dtype), kv_cache)  # torch compiles nothing

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        first = metadata.leading_decodes
        if first == len(metadata.seq_lens):
            return super().forward(q, kv_cache, metadata)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        if first:
            decodes = replace(
                metadata, query_start_loc=metadata.query_start_loc[: first + 1], seq_lens=metadata.seq_lens[:first],
                block_tables=metadata.block_tables[:first], max_query_len=1,
            )  # fmt: skip
            out[:first] = super().forward(q[:first], kv_cache, decodes)
        queries = q.to(kv_cache.dtype)
        for seq, (start, end, _) in enumerate(metadata.spans):
            if end > start >= first:
                out[start:end] = self._prefill(queries[start:end], *self._read(kv_cache, metadata, seq))
        return out
