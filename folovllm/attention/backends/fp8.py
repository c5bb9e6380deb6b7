"""The paged cache in 8 bits (e4m3), in plain torch and in our own Triton kernels.

    CPU     write      k, v ─▶ e4m3, its bytes at their slots
            forward    the blocks that the step reads ─▶ q's dtype, side by side ─▶ PagedTorchBackend
    CUDA    write      store_kv_fp8
            forward    paged_decode, paged_prefill; a tile of K and V is converted to q's dtype when it has come

The scale is 1: a stored number means itself. e4m3 reaches from 2^-9 to 448, and keys and values of the models here are
well inside. Three bits of mantissa are a relative error of 1/16 at most for a number in that range.

On a CPU this saves memory, not time: no CPU instruction multiplies 8 bits of this kind, so each block is converted in
every layer of every step. A decode step on a GPU waits for K and V, half the bytes, and the conversion is done by
threads that wait. The products stay those of q's dtype: e4m3 in the matrix units would round the softmax's weights to
three bits, too. A model in float32 has its products made by the matrix units as well, in parts of 10 bits (tile.py).

vLLM: config/cache.py (cache_dtype="fp8", with scales of 1.0 unless the checkpoint brings others)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.backends.triton import TritonBackend, kernels_unavailable_reason
from folovllm.attention.metadata import AttentionMetadata

FP8 = torch.float8_e4m3fn
LARGEST = 448.0


def to_bytes(x: torch.Tensor) -> torch.Tensor:
    """x in e4m3, as uint8: more than 448 becomes 448, NaN stays."""
    return x.float().clamp(-LARGEST, LARGEST).to(FP8).view(torch.uint8)


class PagedFp8Backend(PagedTorchBackend):
    name = "paged_fp8"
    stores_as_is = False

    def __init__(self, *shape: Any) -> None:
        super().__init__(*shape)
        self._moved: tuple[AttentionMetadata, torch.Tensor, AttentionMetadata] | None = None

    def write(self, k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        super().write(to_bytes(k), to_bytes(v), kv_cache, slot_mapping)

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        if self._moved is None or self._moved[0] is not metadata:
            used, tables = metadata.block_tables.unique(return_inverse=True)
            self._moved = metadata, used, replace(metadata, block_tables=tables.to(torch.int32))
        _, used, of_used = self._moved
        return super().forward(q, self.numbers(kv_cache.index_select(1, used), q.dtype), of_used)

    def numbers(self, blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return blocks.view(FP8).to(dtype)


class TritonFp8Backend(TritonBackend):
    name = "triton_fp8"
    stores_as_is = False

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        return kernels_unavailable_reason(device, (8, 9))  # earlier ones do not convert e4m3

    def write(self, k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        from folovllm.attention.kernels.store_kv_fp8 import store_kv_fp8

        keys, values = kv_cache.view(torch.uint8).unbind(0)
        store_kv_fp8(k, v, keys, values, slot_mapping)

    def warm_up(self, kv_cache: torch.Tensor, dtype: torch.dtype | None = None) -> None:
        super().warm_up(kv_cache.view(FP8), dtype)

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        return super().forward(q, kv_cache.view(FP8), metadata)
