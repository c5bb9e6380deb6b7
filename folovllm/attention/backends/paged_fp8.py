"""The paged cache in 8 bits, in plain torch: what the Triton kernels for it are held against, and CPUs run it.

    write      k, v ─▶ e4m3, its bytes at their slots
    forward    the blocks that the step reads ─▶ q's dtype, side by side ─▶ PagedTorchBackend, which knows no 8 bits

The scale is 1: a stored number means itself. e4m3 reaches from 2^-9 to 448, and keys and values of the models here lie
well inside. Three bits of mantissa are a relative error of 1/16 at most for a number in that range.

On a CPU this saves memory, not time: no CPU instruction multiplies 8 bits of this kind, so each block is converted in
every layer of every step.

vLLM: config/cache.py (cache_dtype="fp8", with scales of 1.0 unless the checkpoint brings others)
"""

from __future__ import annotations

from dataclasses import replace

import torch

from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.metadata import AttentionMetadata

FP8 = torch.float8_e4m3fn
LARGEST = 448.0


def to_bytes(x: torch.Tensor) -> torch.Tensor:
    """x in e4m3, as uint8: more than 448 becomes 448, NaN stays."""
    return x.float().clamp(-LARGEST, LARGEST).to(FP8).view(torch.uint8)


class PagedFp8Backend(PagedTorchBackend):
    name = "paged_fp8"

    def __init__(self, num_heads: int, num_kv_heads: int, head_size: int, scale: float) -> None:
        super().__init__(num_heads, num_kv_heads, head_size, scale)
        self._moved: tuple[AttentionMetadata, torch.Tensor, AttentionMetadata] | None = None

    def write(self, k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        super().write(to_bytes(k), to_bytes(v), kv_cache, slot_mapping)

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        if self._moved is None or self._moved[0] is not metadata:
            used, tables = metadata.block_tables.unique(return_inverse=True)
            self._moved = metadata, used, replace(metadata, block_tables=tables.to(torch.int32))
        _, used, of_used = self._moved
        return super().forward(q, kv_cache.index_select(1, used).view(FP8).to(q.dtype), of_used)
