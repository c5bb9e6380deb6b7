"""torch.nn.attention.varlen for prefill: the FlashAttention that comes with torch. Decodes go to our own paged_decode.

It reads K and V that lie flat, sequence after sequence, and not through block tables. So every key of the sequences in
prefill, the cached context too, is gathered first:

    cache    [7: a0..] [2: c0..] [9: a16..]        block tables  a: 7 9    c: 2
    flat     a0 a1 .. a15 a16 .. | c0 c1 ..        cu_seq_k      0         len(a)       len(a) + len(c)

The gather is one more read and write of those keys. The kernel is worth it: it comes nearer to what the GPU can do. It
exists in 16 bits alone, so a float32 cache goes to our own paged_prefill instead. Where the keys lie is computed once a
step, for all layers. To learn how many keys there are, the host waits for the GPU once.

vLLM: none (v1/attention/backends/flash_attn.py pages)
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

from folovllm.attention.backends.triton import TritonBackend
from folovllm.attention.metadata import AttentionMetadata


@dataclass(slots=True)
class FlatKeys:
    """Where the keys of a step's sequences in prefill lie, and where they begin once they are gathered."""

    metadata: AttentionMetadata
    block_size: int
    slots: torch.Tensor
    """[keys of all these sequences] int64."""
    starts: torch.Tensor
    """[sequences + 1] int32."""
    query_starts: torch.Tensor
    """[sequences + 1] int32; the first is 0."""


class TorchVarlenBackend(TritonBackend):
    name = "torch_varlen"

    def __init__(self, num_heads: int, num_kv_heads: int, head_size: int, scale: float) -> None:
        super().__init__(num_heads, num_kv_heads, head_size, scale)
        self._flat: FlatKeys | None = None

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        if device.type != "cuda":
            return "needs a CUDA device"
        if find_spec("torch.nn.attention.varlen") is None:
            return f"torch {torch.__version__} has no torch.nn.attention.varlen"
        return super().unavailable_reason(device)

    def _prefill(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata, out: torch.Tensor) -> None:
        if kv_cache.dtype == torch.float32 or self.head_size % 8:
            super()._prefill(q, kv_cache, metadata, out)
            return
        from torch.nn.attention.varlen import varlen_attn

        block_size = kv_cache.shape[2]
        if self._flat is None or self._flat.metadata is not metadata or self._flat.block_size != block_size:
            self._flat = flatten_keys(metadata, block_size)
        flat, first = self._flat, metadata.leading_decodes
        keys, values = (
            cache.view(-1, self.num_kv_heads, self.head_size).index_select(0, flat.slots)
            for cache in kv_cache.unbind(0)
        )
        options: dict[str, Any] = {"scale": self.scale, "window_size": (-1, 0)}  # no key behind the query's own
        if _has_gqa_switch():
            options["enable_gqa"] = self.group_size > 1
        attended = varlen_attn(
            q[first:].to(kv_cache.dtype),
            keys,
            values,
            flat.query_starts,
            flat.starts,
            metadata.max_query_len,
            metadata.max_seq_len,
            **options,
        )
        assert isinstance(attended, torch.Tensor)  # a pair only where the sums of the softmax were asked for
        out[first:] = attended


@cache
def _has_gqa_switch() -> bool:
    """Whether varlen_attn must be told of grouped heads; without such a parameter it takes them as they are."""
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in inspect.signature(varlen_attn).parameters


def flatten_keys(metadata: AttentionMetadata, block_size: int) -> FlatKeys:
    """The slots of all keys of the sequences behind the leading decodes, one sequence after the other."""
    first = metadata.leading_decodes
    seq_lens, tables = metadata.seq_lens[first:], metadata.block_tables[first:]
    ends = seq_lens.cumsum(0, dtype=torch.int32)
    starts = torch.cat([ends.new_zeros(1), ends])
    seqs = torch.repeat_interleave(torch.arange(len(seq_lens), device=seq_lens.device), seq_lens)
    positions = torch.arange(len(seqs), device=seqs.device) - starts[seqs]
    slots = tables[seqs, positions // block_size].long() * block_size + positions % block_size
    return FlatKeys(metadata, block_size, slots, starts, metadata.query_start_loc[first:] - first)
