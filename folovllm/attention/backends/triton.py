"""Our own Triton kernels: K and V are stored, and read through the block table, where they lie in the cache.

    write      store_kv        one launch
    forward    paged_decode    the sequences with one query: every token of K and V crosses the chip's edge once
               paged_prefill   the others: a tile of queries reads K and V tile by tile

Nothing is gathered, planned or copied to the host, so a decode step is the same few launches whatever it holds, and a
CUDA graph may replay them.

vLLM: v1/attention/backends/triton_attn.py
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

from folovllm.attention.backend import AttentionBackend
from folovllm.attention.metadata import AttentionMetadata


def kernels_unavailable_reason(device: torch.device) -> str | None:
    """Why our Triton kernels cannot run on `device`. In Triton's interpreter they run anywhere, slowly."""
    if find_spec("triton") is None:
        return "triton is not installed (a CUDA build of torch for Linux brings it)"
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return None
    if device.type != "cuda":
        return "needs a CUDA device"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "needs a GPU of compute capability 8.0 or above"
    return None


class TritonBackend(AttentionBackend):
    name = "triton"
    supports_cuda_graphs = True

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        return kernels_unavailable_reason(device)

    @classmethod
    def only_by_name(cls, device: torch.device) -> bool:
        return device.type != "cuda"  # the interpreter is for tests: a thousand times slower than torch

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        raise NotImplementedError
