"""Our own Triton kernels: K and V are stored, and read through the block table, in place.

    write      norm_rotary     which has them at hand (layers/kernels); by itself, as any backend
               paged_decode    in a step of decodes, in which it also turns them
    forward    paged_decode    all sequences, where none has more queries than a tile of it has room for, as a draft's
                               verification; else those in front that have one query
               paged_prefill   the others; a step without one leaves its launch out

Nothing is gathered, planned or copied to the host. So a decode step is the same few launches for any sequences, and a
CUDA graph may replay them.

vLLM: v1/attention/backends/triton_attn.py
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

from folovllm.attention.backend import AttentionBackend, FusedRope
from folovllm.attention.metadata import AttentionMetadata
from folovllm.utils.gpus import gpu_of


def kernels_unavailable_reason(device: torch.device, least: tuple[int, int] = (7, 5)) -> str | None:
    """Why Triton kernels cannot run on `device`, or None if they can. least: the compute capability that they need of
    NVIDIA's.

    With TRITON_INTERPRET=1, set before anything imports a kernel, they run on a CPU too, in Triton's interpreter.
    """
    interpreted = device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda" and not interpreted:
        return "needs a CUDA device"
    if find_spec("triton") is None:
        return "triton is not installed; torch's CUDA builds for Linux bring it"
    if not interpreted and (gpu := gpu_of(device)).vendor == "nvidia" and gpu.capability < least:
        return "needs a GPU of compute capability {}.{} or above".format(*least)
    return None


class TritonBackend(AttentionBackend):
    """In Triton's interpreter it is thousands of times slower than torch: it is for tests there, and only by name."""

    name = "triton"
    supports_cuda_graphs = True
    supports_prompt_graphs = True
    supports_extras = True
    supports_fused_decode = True
    counters: torch.Tensor | None = None
    """As paged_decode() takes them: each layer has some, made before a graph is recorded, which holds their address."""

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        return kernels_unavailable_reason(device, (8, 0))  # turing.py has an earlier one's prompts computed by torch

    @classmethod
    def only_by_name(cls, device: torch.device) -> bool:
        return device.type != "cuda"

    def warm_up(self, kv_cache: torch.Tensor, dtype: torch.dtype | None = None) -> None:
        """One token in block 0, as prompts of each length that has tiles of its own, and as a decode in few splits and
        in many. Nothing else makes another kernel: neither lengths, nor how many sequences there are, nor where the
        prefills of a step begin. The shortest prompts are decodes here."""
        from folovllm.attention.kernels.paged_prefill import MOST_ROWS, paged_prefill

        (q, step), (keys, values) = self.one_token(kv_cache, dtype), kv_cache.unbind(0)
        tables, one = step.block_tables, step.seq_lens
        for longest in (max(1, MOST_ROWS[-1] // self.group_size), MOST_ROWS[-1] // self.group_size + 1):
            paged_prefill(q, keys, values, tables, step.query_start_loc, one, longest, self.scale, extras=self.extras)
        self.warm_up_decode(q, step, kv_cache)

    def warm_up_decode(self, q: torch.Tensor, step: AttentionMetadata, kv_cache: torch.Tensor) -> None:
        from folovllm.attention.kernels.paged_decode import FEW_SPLITS, MAX_SPLITS, paged_decode

        (keys, values), tables = kv_cache.unbind(0), step.block_tables
        for splits in (1, FEW_SPLITS, MAX_SPLITS):
            paged_decode(
                q, keys, values, tables, step.seq_lens, self.scale, query_start_loc=step.query_start_loc,
                order=tables[0], num_splits=splits, extras=self.extras,
            )  # fmt: skip

    def one_token(self, kv_cache: torch.Tensor, dtype: torch.dtype | None) -> tuple[torch.Tensor, AttentionMetadata]:
        """A sequence of one token, whose keys and values are written to block 0; its query."""
        num_heads, device = self.num_heads + 2 * self.num_kv_heads, kv_cache.device
        fused = torch.zeros(1, num_heads, self.head_size, dtype=dtype or kv_cache.dtype, device=device)
        q, k, v = fused.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)  # views, as a model's are
        starts = torch.arange(2, dtype=torch.int32, device=device)
        slots, tables = torch.zeros(1, dtype=torch.int64, device=device), torch.zeros_like(starts[:1]).view(1, 1)
        self.write(k, v, kv_cache, slots)
        return q, AttentionMetadata(starts, starts[1:].clone(), slots, tables, max_query_len=1, max_seq_len=1)

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        return self.fused_forward(q, kv_cache, metadata, None)

    def fused_forward(
        self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata, fused: FusedRope | None
    ) -> torch.Tensor:
        """fused: of a step in which each sequence has one query, whose norm, rotation and write() it then is, too."""
        from folovllm.attention.kernels.paged_decode import most_queries, paged_decode, places_of
        from folovllm.attention.kernels.paged_prefill import paged_prefill

        out, (keys, values) = torch.empty_like(q, memory_format=torch.contiguous_format), kv_cache.unbind(0)
        first, order = metadata.leading_decodes, metadata.decode_order
        rows = first  # what splits leave in memory is for these alone
        tables, lens, starts = metadata.block_tables, metadata.seq_lens, metadata.query_start_loc
        if first < len(lens) and metadata.max_query_len <= most_queries(self.group_size):
            first, order, rows = len(lens), None, len(q)
        if self.counters is None:  # enough for all that choose_splits() splits
            self.counters = torch.zeros(4 * places_of(q.device), dtype=torch.int32, device=q.device)
        if first:
            paged_decode(
                q[:rows], keys, values, tables[:first], lens[:first], self.scale, query_start_loc=starts[: first + 1],
                order=order, out=out[:rows], counters=self.counters, extras=self.extras, fused=fused,
            )  # fmt: skip
        if first < len(lens):
            longest = metadata.max_query_len
            paged_prefill(
                q, keys, values, tables[first:], starts[first:], lens[first:], longest, self.scale, out=out,
                extras=self.extras,
            )  # fmt: skip
        return out
