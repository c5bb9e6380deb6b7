"""Paged attention on a CPU with kernels of our own: K and V are read in place, nothing is gathered or padded.

    write      store_kv   K and V in one call
    forward    decode     every sequence with one query, in one call (csrc/attention.cpp)
               prefill    every other, in one call (csrc/prefill.cpp)

vLLM: v1/attention/backends/cpu_attn.py, csrc/cpu/cpu_attn.cpp
"""

from __future__ import annotations

from ctypes import Structure, byref
from typing import Any

import torch

from folovllm.attention.backend import AttentionExtras
from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.attention.metadata import AttentionMetadata
from folovllm.utils.cpu_kernels import DTYPE_NAMES, FLOAT, INT, POINTER, function, unavailable_reason
from folovllm.utils.recycled_memory import RESULTS

HEAD_SIZE_STEP = 16  # what a register holds


class Extras(Structure):
    """AttentionExtras, as csrc/extras.h declares them, field by field in the same order."""

    _fields_ = [("window", INT), ("soft_cap", FLOAT), ("sinks", POINTER)]

    def __init__(self, extras: AttentionExtras) -> None:
        window = 2**62 if extras.sliding_window is None else extras.sliding_window
        super().__init__(window, extras.logits_soft_cap or 0.0)
        if extras.sinks is not None:
            self.kept = extras.sinks.float().contiguous()
            self.sinks = self.kept.data_ptr()


class Lists:
    """The sequences of a step, those with one query and the others, the same in every layer."""

    decodes_apart = True
    """True: sequences with one query are computed by decode(). False: all sequences by prefill()."""

    def __init__(self, metadata: AttentionMetadata) -> None:
        self.metadata = metadata
        self.seq_lens, self.block_tables = metadata.seq_lens.contiguous(), metadata.block_tables.contiguous()
        if self.decodes_apart and metadata.max_query_len == 1 and len(metadata.slot_mapping) == len(self.seq_lens):
            self.queries = self.decodes = torch.arange(len(self.seq_lens))
            self.spans = self.prefills = torch.empty(0, dtype=torch.int64)
            return
        queries, decodes, spans, prefills = [], [], [], []
        for seq, (start, end, _) in enumerate(metadata.spans):
            if end - start == 1 and self.decodes_apart:
                queries.append(start)
                decodes.append(seq)
            elif end > start:
                spans.append((start, end))
                prefills.append(seq)
        self.queries = torch.tensor(queries, dtype=torch.int64)
        self.decodes = torch.tensor(decodes, dtype=torch.int64)
        self.spans = torch.tensor(spans, dtype=torch.int64)
        self.prefills = torch.tensor(prefills, dtype=torch.int64)


class CPUBackend(PagedTorchBackend):
    """Float32 queries on a float32 or bfloat16 cache, or both bfloat16; heads of a multiple of 16. Whatever else comes
    is read as PagedTorchBackend reads it."""

    name = "cpu"
    lists_class = Lists
    dtypes: tuple[tuple[torch.dtype, torch.dtype], ...] = (  # of the queries, of the cache
        (torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16)
    )  # fmt: skip

    def __init__(self, *shape: Any) -> None:
        super().__init__(*shape)
        self._lists: Lists | None = None
        self.compiled_extras = Extras(self.extras) if self.extras else None

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        return "runs on CPU only" if device.type != "cpu" else unavailable_reason()

    def write(self, k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        if self._suits(k, kv_cache) and self._suits(v, kv_cache):
            store_kv(k, v, kv_cache, slot_mapping)
        else:
            super().write(k, v, kv_cache, slot_mapping)

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        if not self._suits(q, kv_cache):
            return super().forward(q, kv_cache, metadata)
        lists, out = self.lists(metadata), RESULTS.empty(q.shape, q.dtype)
        where = (lists.seq_lens, lists.block_tables, self.scale, out, self.compiled_extras)
        if len(lists.decodes):
            attend("decode", q, kv_cache, lists.queries, lists.decodes, *where)
        if len(lists.prefills):
            attend("prefill", q, kv_cache, lists.spans, lists.prefills, *where)
        return out

    def lists(self, metadata: AttentionMetadata) -> Lists:
        """Made once a step."""
        if self._lists is None or self._lists.metadata is not metadata:
            self._lists = self.lists_class(metadata)
        return self._lists

    def _suits(self, x: torch.Tensor, kv_cache: torch.Tensor) -> bool:
        whole_heads = x.stride(2) == 1 and x.stride(1) == self.head_size
        return whole_heads and self.head_size % HEAD_SIZE_STEP == 0 and (x.dtype, kv_cache.dtype) in self.dtypes


def store_kv(k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Write k and v [num_tokens, num_kv_heads, head_size] to their slots, [num_tokens] int64, in the cache's dtype."""
    num_tokens, num_kv_heads, head_size = k.shape
    function(f"store_kv_{DTYPE_NAMES[k.dtype]}_{DTYPE_NAMES[kv_cache.dtype]}")(
        k.data_ptr(), v.data_ptr(), k.stride(0), v.stride(0), kv_cache[0].data_ptr(), kv_cache[1].data_ptr(),
        slots.data_ptr(), num_tokens, kv_cache.shape[2], num_kv_heads, head_size,
    )  # fmt: skip


def attend(
    name: str, q: torch.Tensor, kv_cache: torch.Tensor, queries: torch.Tensor, seqs: torch.Tensor,
    seq_lens: torch.Tensor, block_tables: torch.Tensor, scale: float, out: torch.Tensor, extras: Extras | None = None,
) -> None:  # fmt: skip
    """Causal attention of sequences whose queries are their last positions.

    A row's bits depend on its sequence up to there alone, not on how many other queries come with it.

    Args:
        name: "decode", where each of the sequences has one query, or "prefill".
        q: [num_tokens, num_heads, head_size], of which some rows are computed: `queries` [num_decodes] int64, or from
            queries[i, 0] up to queries[i, 1], [num_prefills, 2] int64.
        seqs: [num_decodes or num_prefills] int64, whose queries they are: rows of `seq_lens` [num_seqs] and
            `block_tables` [num_seqs, max_blocks], both int32. All integer tensors are contiguous.
        out: like q and contiguous; its rows that are computed are written.
    """
    _, _, block_size, num_kv_heads, _ = kv_cache.shape
    function(f"{name}_{DTYPE_NAMES[q.dtype]}_{DTYPE_NAMES[kv_cache.dtype]}")(
        q.data_ptr(), q.stride(0), kv_cache[0].data_ptr(), kv_cache[1].data_ptr(), queries.data_ptr(), seqs.data_ptr(),
        seq_lens.data_ptr(), block_tables.data_ptr(), block_tables.stride(0), len(seqs), block_size, q.shape[1],
        num_kv_heads, q.shape[2], scale, None if extras is None else byref(extras),
        out.data_ptr(),
    )  # fmt: skip
