from __future__ import annotations

import torch

from folovllm.attention.backend import AttentionBackend
from folovllm.attention.metadata import AttentionMetadata


class FlashInferBackend(AttentionBackend):
    name = "flashinfer"

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        return "needs a CUDA device"

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        raise NotImplementedError
