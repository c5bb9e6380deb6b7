"""Our own Triton kernels over a cache of 8 bits: half as many bytes to read as in bfloat16.

    write      store_kv_fp8                  rounds to e4m3
    forward    paged_decode, paged_prefill   as ever; a tile of K and V is converted to q's dtype when it has come

A decode step waits for K and V, and the conversion is done by threads that wait. The products stay those of q's dtype:
e4m3 in the matrix units would round the softmax's weights to three bits, too. A model in float32 has its products made
by the matrix units as well, in parts of 10 bits (tile.py): more exact by far than a cache of 8 bits is.

vLLM: v1/attention/backends/triton_attn.py with kv_cache_dtype="fp8"
"""

from __future__ import annotations

import torch

from folovllm.attention.backends.paged_fp8 import FP8
from folovllm.attention.backends.triton import TritonBackend
from folovllm.attention.metadata import AttentionMetadata

CAPABILITY = (8, 9)
"""The first GPUs that convert e4m3."""


class TritonFp8Backend(TritonBackend):
    name = "triton_fp8"

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        reason = super().unavailable_reason(device)
        if reason is None and device.type == "cuda" and torch.cuda.get_device_capability(device) < CAPABILITY:
            return "needs a GPU of compute capability 8.9 or above"
        return reason

    def write(self, k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        from folovllm.attention.kernels.store_kv_fp8 import store_kv_fp8

        keys, values = kv_cache.view(torch.uint8).unbind(0)
        store_kv_fp8(k, v, keys, values, slot_mapping)

    def warm_up(self, kv_cache: torch.Tensor, dtype: torch.dtype | None = None) -> None:
        super().warm_up(kv_cache.view(FP8), dtype)

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        return super().forward(q, kv_cache.view(FP8), metadata)
