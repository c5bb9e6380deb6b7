"""Paged attention whose bits depend on a query's position and on what it sees, and on nothing else.

How a query's numbers are summed is decided by the shape of the call: how many keys, how many queries. Here a query's
position decides both. Positions come in tiles, and a query reads the keys up to its tile's end, those behind itself
with weight zero. With tiles of 32 (tiling.py finds out what holds here):

    position        0 ........ 31 | 32 ....... 63 | 64 ..
    keys            32            | 64            | 96       never those of a longer neighbour
    prefill         a call for each tile of a sequence, always with 32 queries; where a chunk begins or ends
                    within a tile, zeros stand for the queries that are not computed
    decode          a call for the sequences in the same tile, always with the same number of queries

Slots that no token has written may hold NaN, and zero times NaN is NaN. A gather takes the sequence's first slot in
their place. A slice is read only where they lie in the sequence's own block, and they are cleared before.

vLLM: v1/attention/backends/flash_attn.py with num_splits=1, under VLLM_BATCH_INVARIANT
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from folovllm.attention.backend import AttentionBackend
from folovllm.attention.backends.paged_torch import BATCH_BYTES
from folovllm.attention.metadata import AttentionMetadata
from folovllm.attention.tiling import Tiling, attend_decodes, attend_tile, find_tiling


@dataclass(slots=True)
class Decodes:
    """Sequences with one query each, in the same tile."""

    queries: torch.Tensor
    """[num_seqs] their places in the flat tokens."""
    slots: torch.Tensor | slice
    """[num_seqs * num_keys]; of a single sequence in consecutive blocks, a slice."""
    unwritten: slice
    """Of the slots that a slice reads, those behind the sequence's end. They are its own, and are cleared."""
    mask: torch.Tensor
    """[num_seqs, num_keys] to add to the scores."""


@dataclass(slots=True)
class Prefill:
    """A sequence with several queries."""

    start: int
    end: int  # its queries are q[start:end]
    first_tile: int
    offset: int  # of the first query in that tile
    slots: torch.Tensor
    """[num_keys] up to the end of the last query's tile."""


class Plan:
    """How the sequences of one step are read, the same in every layer."""

    def __init__(self, metadata: AttentionMetadata, kv_cache: torch.Tensor, tiling: Tiling) -> None:
        _, _, self._block_size, num_kv_heads, head_size = kv_cache.shape
        self._metadata, self.key = metadata, (metadata, kv_cache.shape, kv_cache.dtype)
        self.decodes: list[Decodes] = []
        self.prefills: list[Prefill] = []
        self.tiling, tile_size = tiling, tiling.tile
        self.mask = tiling.mask(tiling.padded(metadata.max_seq_len), kv_cache.dtype)
        by_tile = defaultdict[int, list[int]](list)
        for seq, (start, end, seq_len) in enumerate(metadata.spans):
            if end - start == 1:
                by_tile[(seq_len - 1) // tile_size].append(seq)
            elif end > start:
                tile, offset = divmod(seq_len - (end - start), tile_size)
                slots = self._slots([seq], tiling.padded(seq_len))
                self.prefills.append(Prefill(start, end, tile, offset, slots))
        key_bytes = 2 * num_kv_heads * head_size * kv_cache.element_size()
        for tile, seqs in by_tile.items():
            num_keys = (tile + 1) * tile_size
            most = max(BATCH_BYTES // (num_keys * key_bytes), 1)
            for first in range(0, len(seqs), most):
                self.decodes.append(self._plan_decodes(seqs[first : first + most], num_keys))

    def matches(self, metadata: AttentionMetadata, kv_cache: torch.Tensor) -> bool:
        planned, shape, dtype = self.key
        return planned is metadata and shape == kv_cache.shape and dtype == kv_cache.dtype

    def _plan_decodes(self, seqs: list[int], num_keys: int) -> Decodes:
        spans = [self._metadata.spans[seq] for seq in seqs]
        places = torch.tensor([(seq_len - 1) % self.tiling.tile for _, _, seq_len in spans])
        mask = self.mask[:, -num_keys:].index_select(0, places)
        queries = torch.tensor([start for start, _, _ in spans])
        if len(seqs) == 1 and (first := self._first_of_slice(seqs[0], num_keys)) is not None:
            unwritten = slice(first + spans[0][2], first + num_keys)
            return Decodes(queries, slice(first, first + num_keys), unwritten, mask)
        return Decodes(queries, self._slots(seqs, num_keys), slice(0), mask)

    def _first_of_slice(self, seq: int, num_keys: int) -> int | None:
        """The first of `num_keys` consecutive slots, all of them in the sequence's own blocks; None if they are not."""
        num_blocks = -(-self._metadata.spans[seq][2] // self._block_size)
        blocks = self._metadata.block_ids[seq][:num_blocks]
        consecutive = blocks == list(range(blocks[0], blocks[0] + num_blocks))
        return blocks[0] * self._block_size if consecutive and num_keys <= num_blocks * self._block_size else None

    def _slots(self, seqs: list[int], num_keys: int) -> torch.Tensor:
        """Slots [len(seqs) * num_keys] of the sequences' keys; behind a sequence's end, its first slot."""
        size = self._block_size
        tables = self._metadata.block_tables[:, : -(-num_keys // size)][seqs].long()
        slots = (tables[:, :, None] * size + torch.arange(size)).view(len(seqs), -1)
        slots = F.pad(slots, (0, max(0, num_keys - slots.shape[1])))[:, :num_keys]
        lens = torch.tensor([self._metadata.spans[seq][2] for seq in seqs])
        return torch.where(torch.arange(num_keys) < lens[:, None], slots, slots[:, :1]).view(-1)


class PagedInvariantBackend(AttentionBackend):
    """Keeps the plan of the step it last saw, and the memory into which it gathers."""

    name = "paged_invariant"

    def __init__(self, num_heads: int, num_kv_heads: int, head_size: int, scale: float) -> None:
        super().__init__(num_heads, num_kv_heads, head_size, scale)
        self._plan: Plan | None = None
        self._scratch = torch.empty(0)

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        return None if device.type == "cpu" else "runs on CPU only"

    def tiling(self, dtype: torch.dtype) -> Tiling:
        """Of a cache of this dtype. Raises ValueError where no tiling keeps the bits."""
        return find_tiling(self.num_kv_heads, self.group_size, self.head_size, dtype)

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        if self._plan is None or not self._plan.matches(metadata, kv_cache):
            self._plan = Plan(metadata, kv_cache, self.tiling(kv_cache.dtype))
        plan = self._plan
        # Attention is computed in the dtype in which K and V are kept.
        queries = q.to(kv_cache.dtype).view(-1, self.num_kv_heads, self.group_size, self.head_size)
        caches = kv_cache.flatten(1, 2)  # [2, num_slots, num_kv_heads, head_size]
        out = torch.empty_like(queries)
        for decodes in plan.decodes:
            mine = queries.index_select(0, decodes.queries)
            k, v = self._read(caches, decodes).view(2, len(mine), -1, self.num_kv_heads, self.head_size)
            attended = attend_decodes(mine, k, v, decodes.mask, plan.tiling, self.scale)
            out.index_copy_(0, decodes.queries, attended)
        for prefill in plan.prefills:
            mine = queries[prefill.start : prefill.end]
            out[prefill.start : prefill.end] = self._prefill(mine, self._gather(caches, prefill.slots), prefill, plan)
        return out.view(q.shape).to(q.dtype)

    def _read(self, caches: torch.Tensor, decodes: Decodes) -> torch.Tensor:
        """K and V [2, num_seqs * num_keys, num_kv_heads, head_size]."""
        if isinstance(decodes.slots, slice):
            caches[:, decodes.unwritten] = 0.0
            return caches[:, decodes.slots]
        return self._gather(caches, decodes.slots)

    def _prefill(self, q: torch.Tensor, keys_and_values: torch.Tensor, prefill: Prefill, plan: Plan) -> torch.Tensor:
        """q [num_queries, num_kv_heads, group_size, head_size]; K and V [2, num_keys, num_kv_heads, head_size]."""
        tile = plan.tiling.tile
        k, v = keys_and_values.transpose(1, 2).contiguous()
        behind = -(prefill.offset + len(q)) % tile
        tiles = F.pad(q, (0, 0, 0, 0, 0, 0, prefill.offset, behind)).unflatten(0, (-1, tile))
        out = torch.empty_like(tiles)
        for number, queries in enumerate(tiles):
            num_keys = (prefill.first_tile + number + 1) * tile
            out[number] = attend_tile(queries, k[:, :num_keys], v[:, :num_keys], plan.mask[:, -num_keys:], self.scale)
        return out.flatten(0, 1)[prefill.offset : prefill.offset + len(q)]

    def _gather(self, caches: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """K and V of these slots [2, len(slots), num_kv_heads, head_size], good until the next call: fresh memory is
        slower to write (page faults) than K and V are to read."""
        size = 2 * len(slots) * caches[0, 0].numel()
        if self._scratch.numel() < size or self._scratch.dtype != caches.dtype:
            with torch.inference_mode(False):  # an inference tensor could not be written outside of that mode
                self._scratch = torch.empty(size, dtype=caches.dtype)
        out = self._scratch[:size].view(2, len(slots), *caches.shape[2:])
        for cache, taken in zip(caches, out, strict=True):
            torch.index_select(cache, 0, slots, out=taken)
        return out
