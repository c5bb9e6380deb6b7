"""Our own Triton kernels: K and V are stored, and read through the block table, where they lie in the cache.

    write      norm_rotary     which has them at hand (layers/kernels); by itself, as any backend
    forward    paged_decode    the sequences in front that have one query
               paged_prefill   the others; a step without one leaves its launch out

Nothing is gathered, planned or copied to the host. So a decode step is the same few launches for any sequences, and a
CUDA graph may replay them.

vLLM: v1/attention/backends/triton_attn.py
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

from folovllm.attention.backend import AttentionBackend
from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.metadata import AttentionMetadata


def kernels_unavailable_reason(device: torch.device) -> str | None:
    """Why Triton kernels cannot run on `device`, or None if they can.

    With TRITON_INTERPRET=1, set before anything imports a kernel, they run on a CPU too, in Triton's interpreter.
    """
    interpreted = device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda" and not interpreted:
        return "needs a CUDA device"
    if find_spec("triton") is None:
        return "triton is not installed; torch's CUDA builds for Linux bring it"
    if not interpreted and torch.cuda.get_device_capability(device) < (8, 0):
        return "needs a GPU of compute capability 8.0 or above"
    return None


class TritonBackend(AttentionBackend):
    """In Triton's interpreter it is thousands of times slower than torch: it is for tests there, and only by name."""

    name = "triton"
    supports_cuda_graphs = True
    plain: type[AttentionBackend] | None = PagedTorchBackend

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        return kernels_unavailable_reason(device)

    @classmethod
    def only_by_name(cls, device: torch.device) -> bool:
        return device.type != "cuda"

    def warm_up(self, kv_cache: torch.Tensor, dtype: torch.dtype | None = None) -> None:
        """One token in block 0, as prompts of each length that has tiles of its own, and as a decode in few splits and
        in many. Nothing else makes another kernel: neither lengths, nor how many sequences there are, nor where the
        prefills of a step begin."""
        from folovllm.attention.kernels.paged_decode import FEW_SPLITS, MAX_SPLITS, paged_decode
        from folovllm.attention.kernels.paged_prefill import MOST_ROWS, paged_prefill

        device, (keys, values) = kv_cache.device, kv_cache.unbind(0)
        fused = torch.zeros(
            1, self.num_heads + 2 * self.num_kv_heads, self.head_size, dtype=dtype or kv_cache.dtype, device=device
        )
        q, k, v = fused.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)  # views, as a model's are
        starts = torch.arange(2, dtype=torch.int32, device=device)
        one, tables = starts[1:].clone(), torch.zeros(1, 1, dtype=torch.int32, device=device)
        self.write(k, v, kv_cache, torch.zeros(1, dtype=torch.int64, device=device))
        for rows in (*MOST_ROWS, MOST_ROWS[-1] + 1):
            longest = -(-rows // self.group_size) if rows > MOST_ROWS[-1] else max(1, rows // self.group_size)
            paged_prefill(q, keys, values, tables, starts, one, longest, self.scale)
        for splits in (1, FEW_SPLITS, MAX_SPLITS):
            paged_decode(q, keys, values, tables, one, self.scale, order=tables[0], num_splits=splits)

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        if decodes := metadata.leading_decodes:
            self._decode(q[:decodes], kv_cache, metadata, out[:decodes])
        if decodes < len(metadata.seq_lens):
            self._prefill(q, kv_cache, metadata, out)
        return out

    def _decode(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata, out: torch.Tensor) -> None:
        """The sequences in front with one query each; q and out hold theirs alone."""
        from folovllm.attention.kernels.paged_decode import paged_decode

        keys, values = kv_cache.unbind(0)
        tables, seq_lens = metadata.block_tables[: len(q)], metadata.seq_lens[: len(q)]
        paged_decode(q, keys, values, tables, seq_lens, self.scale, order=metadata.decode_order, out=out)

    def _prefill(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata, out: torch.Tensor) -> None:
        """The sequences behind the decodes; q and out hold all tokens of the step."""
        from folovllm.attention.kernels.paged_prefill import paged_prefill

        first, (keys, values) = metadata.leading_decodes, kv_cache.unbind(0)
        paged_prefill(
            q,
            keys,
            values,
            metadata.block_tables[first:],
            metadata.query_start_loc[first:],
            metadata.seq_lens[first:],
            metadata.max_query_len,
            self.scale,
            out=out,
        )
