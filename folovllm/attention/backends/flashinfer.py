"""FlashInfer, if it is installed: its kernels for decodes and for prefills over a paged cache.

Its layout "NHD" is ours. It plans how the work is divided, on the host, once a step; every layer then runs that plan.

    block tables, as FlashInfer takes them      a: 7 2 9    b: 4       page_starts  0 3 4     (they lie flat)
                                                                       pages        7 2 9 4
                                                                       last_lens    5 16      tokens in the last page

vLLM: v1/attention/backends/flashinfer.py
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from folovllm.attention.backend import AttentionBackend
from folovllm.attention.backends.flash_attn import check_16_bits
from folovllm.attention.metadata import AttentionMetadata

WORKSPACE_BYTES = 128 << 20  # what FlashInfer's documentation takes


@dataclass(slots=True)
class Pages:
    """Block tables without their padding, on the host, where FlashInfer plans."""

    page_starts: torch.Tensor
    """[num_seqs + 1] int32."""
    pages: torch.Tensor
    """[blocks of all sequences] int32."""
    last_lens: torch.Tensor
    """[num_seqs] int32."""


class FlashInferBackend(AttentionBackend):
    """Keeps FlashInfer's two wrappers, which hold the plan of the step it last saw."""

    name = "flashinfer"

    def __init__(self, num_heads: int, num_kv_heads: int, head_size: int, scale: float) -> None:
        super().__init__(num_heads, num_kv_heads, head_size, scale)
        self._decode: Any = None
        self._prefill: Any = None
        self._planned: tuple[AttentionMetadata, torch.dtype, int] | None = None

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        if device.type != "cuda":
            return "needs a CUDA device"
        if find_spec("flashinfer") is None:
            return "flashinfer is not installed (pip install flashinfer-python)"
        if torch.cuda.get_device_capability(device) < (8, 0):
            return "needs a GPU of compute capability 8.0 or above"
        return None

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        check_16_bits(self.name, kv_cache.dtype)
        block_size = kv_cache.shape[2]
        key = (metadata, kv_cache.dtype, block_size)
        planned = self._planned
        if planned is None or planned[0] is not metadata or planned[1:] != key[1:]:
            self._plan(metadata, kv_cache.dtype, block_size, kv_cache.device)
            self._planned = key
        queries, caches, first = q.to(kv_cache.dtype).contiguous(), kv_cache.unbind(0), metadata.leading_decodes
        parts = []
        if first:
            parts.append(self._decode.run(queries[:first], caches))
        if first < len(metadata.seq_lens):
            parts.append(self._prefill.run(queries[first:], caches))
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(q.dtype)

    def _plan(self, metadata: AttentionMetadata, dtype: torch.dtype, block_size: int, device: torch.device) -> None:
        import flashinfer  # type: ignore[import-not-found]

        if self._decode is None:
            # Both wrappers may share one workspace, because they never run at the same time.
            workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
            # Its other decode kernel knows the group sizes 1, 2, 4 and 8 alone and multiplies without matrix units.
            self._decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                workspace, "NHD", use_tensor_cores=self.group_size > 2
            )
            self._prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        heads = (self.num_heads, self.num_kv_heads, self.head_size, block_size)
        kinds = {"q_data_type": dtype, "kv_data_type": dtype, "sm_scale": self.scale}
        first, num_seqs = metadata.leading_decodes, len(metadata.seq_lens)
        if first:
            read = list_pages(metadata, 0, first, block_size)
            self._decode.plan(read.page_starts, read.pages.to(device), read.last_lens, *heads, **kinds)
        if first < num_seqs:
            read = list_pages(metadata, first, num_seqs, block_size)
            query_starts = metadata.query_start_loc[first:].cpu() - first
            self._prefill.plan(
                query_starts, read.page_starts, read.pages.to(device), read.last_lens, *heads, causal=True, **kinds
            )


def list_pages(metadata: AttentionMetadata, first: int, end: int, block_size: int) -> Pages:
    """The blocks of the sequences first .. end - 1. Their lengths lie on the GPU: the host waits for it once a step."""
    lens = [seq_len for _, _, seq_len in metadata.spans[first:end]]
    counts = [-(-seq_len // block_size) for seq_len in lens]
    used = zip(metadata.block_ids[first:end], counts, strict=True)
    return Pages(
        page_starts=torch.tensor([0, *counts]).cumsum(0).int(),
        pages=torch.tensor([block for blocks, count in used for block in blocks[:count]], dtype=torch.int32),
        last_lens=torch.tensor([(seq_len - 1) % block_size + 1 for seq_len in lens], dtype=torch.int32),
    )
