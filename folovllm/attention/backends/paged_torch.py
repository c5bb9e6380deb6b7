"""Paged attention in plain torch: K and V are read through the block table, so the blocks may lie anywhere.

    blocks of the cache   [0: null] [1: b0..] [2: a0..] [3: c..] [4: a16..] [5: b16..]      block tables  a: 2 4
    slots of a            32 33 .. 47, 64 65 .. (slot = block * block_size + offset)                      b: 1 5

Slots that no token has written (the rest of a last block, and the null block) may hold NaN. They take no part in any
product: zero times NaN is NaN, so a mask alone would not do. A gather copies K and V before they are read. Three ways
of reading keep that cost down, and the plan of a step says which sequence is read in which way, for all layers:

    consecutive blocks     a slice of the cache, nothing is copied
    small decodes          many sequences in one gather, padded to the longest: the calls cost more than the copies
    large float32 decodes  in chunks that stay in the CPU's cache, so that memory is read once, as without paging

vLLM: v1/attention/backends/cpu_attn.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from folovllm.attention.backend import AttentionBackend
from folovllm.attention.metadata import AttentionMetadata

# A decode with fewer bytes of K and V than this is gathered together with others. One call for many sequences keeps
# all cores busy; a call for each would cost more than the gather. Measured: with an eighth of this limit, 32 sequences
# of 1.1 MiB take 1.5 times as long. Sequences of 4 MiB and more gain nothing by a common gather.
SMALL_BYTES = 2 << 20
# Padding of up to this size in a gather is cheaper than one more call.
PADDING_BYTES = 256 << 10
# One call gathers at most this much: it is then still in the CPU's last cache when attention reads it.
BATCH_BYTES = 8 << 20
# The K or V of one chunk of a large decode. Chunks of half the size take 10% longer, for there are more calls. Chunks
# of twice the size take 10% longer too, for they leave the cache.
CHUNK_BYTES = 2 << 20
# Queries that start in the middle of a sequence need a mask [queries, longest sequence]. To keep it small, at most this
# many of them are computed at a time.
MASKED_QUERIES = 512

Rows = slice | torch.Tensor
"""Which blocks, or which slots: a slice where they follow each other, else their int64 numbers."""


@dataclass(slots=True)
class Together:
    """Decodes that are read in one gather."""

    num_seqs: int
    longest: int
    slots: torch.Tensor
    """[num_seqs * longest]. Padding behind a sequence's end repeats its first slot, which holds finite numbers."""
    mask: torch.Tensor | None
    """[num_seqs, 1, 1, longest] to add to the scores: -inf behind a sequence's end; None if all are equally long."""


@dataclass(slots=True)
class Alone:
    """A sequence that is read on its own."""

    start: int
    end: int  # its queries are q[start:end]
    pieces: list[tuple[Rows, int]]
    """The sequence cut into stretches, in order: the blocks of each, and how many tokens it holds."""


class Plan:
    """How the sequences of one step are read, the same in every layer."""

    def __init__(self, metadata: AttentionMetadata, kv_cache: torch.Tensor) -> None:
        _, _, self._block_size, num_kv_heads, head_size = kv_cache.shape
        self._metadata, self._dtype = metadata, kv_cache.dtype
        self._row_bytes = num_kv_heads * head_size * kv_cache.element_size()  # the K or the V of one token
        self.key = (metadata, kv_cache.shape, kv_cache.dtype)
        self.together: list[Together] = []
        self.alone: list[Alone] = []
        self.order = torch.empty(0, dtype=torch.int64)
        """Where in the flat tokens the queries of `together` are, batch by batch."""
        self.mask: torch.Tensor | None = None
        """For queries that start in the middle, see _tail_mask."""
        small, first_queries, masked_queries, masked_len = [], [], 0, 0
        for seq, (start, end, seq_len) in enumerate(metadata.spans):
            num_queries = end - start
            if num_queries == 1 and seq_len * 2 * self._row_bytes < SMALL_BYTES:
                small.append((seq_len, seq))
            elif num_queries:
                self._read_alone(seq)
            if 1 < num_queries < seq_len:
                masked_queries, masked_len = max(masked_queries, num_queries), max(masked_len, seq_len)
        for batch in _batches(small, 2 * self._row_bytes):
            if len(batch) == 1:
                self._read_alone(batch[0])
            else:
                self._read_together(batch)
                first_queries += [metadata.spans[seq][0] for seq in batch]
        self.order = torch.tensor(first_queries, dtype=torch.int64, device=kv_cache.device)
        if masked_queries:
            mask = _tail_mask(min(masked_queries, MASKED_QUERIES), masked_len, kv_cache.device)
            self.mask = torch.zeros(mask.shape, dtype=self._dtype, device=mask.device).masked_fill_(~mask, -torch.inf)

    def matches(self, metadata: AttentionMetadata, kv_cache: torch.Tensor) -> bool:
        planned, shape, dtype = self.key
        return planned is metadata and shape == kv_cache.shape and dtype == kv_cache.dtype

    def _read_together(self, batch: list[int]) -> None:
        lens = [self._metadata.spans[seq][2] for seq in batch]
        longest, device = max(lens), self._metadata.block_tables.device
        slots, mask = self._slots(torch.tensor(batch, device=device), longest), None
        if min(lens) < longest:
            behind = torch.arange(longest, device=device) >= torch.tensor(lens, device=device)[:, None]
            slots = torch.where(behind, slots[:, :1], slots)
            mask = torch.zeros(len(batch), 1, 1, longest, dtype=self._dtype, device=device)
            mask.masked_fill_(behind[:, None, None], -torch.inf)
        self.together.append(Together(len(batch), longest, slots.reshape(-1), mask))

    def _read_alone(self, seq: int) -> None:
        start, end, seq_len = self._metadata.spans[seq]
        size, num_blocks = self._block_size, -(-seq_len // self._block_size)
        blocks = self._metadata.block_ids[seq][:num_blocks]
        per_piece = num_blocks
        # Chunks pay in float32 decodes only. They need torch's bmm, which in 16 bits is 4 times slower than torch's
        # attention. In a prefill many queries read the same keys, so the gather is a small part of the work.
        if end - start == 1 and self._dtype == torch.float32 and not _consecutive(blocks):
            per_piece = max(CHUNK_BYTES // (self._row_bytes * size), 1)
        pieces: list[tuple[Rows, int]] = []
        for place in range(0, num_blocks, per_piece):
            ids, rows = blocks[place : place + per_piece], slice(place, place + per_piece)
            num_tokens = min(per_piece * size, seq_len - place * size)
            if _consecutive(ids):
                pieces.append((slice(ids[0], ids[0] + len(ids)), num_tokens))
            else:
                pieces.append((self._metadata.block_tables[seq, :num_blocks][rows].long(), num_tokens))
        self.alone.append(Alone(start, end, pieces))

    def _slots(self, seqs: torch.Tensor, longest: int) -> torch.Tensor:
        """Slots [len(seqs), longest] of the tokens; behind a sequence's end they mean nothing."""
        size = self._block_size
        tables = self._metadata.block_tables[:, : -(-longest // size)].index_select(0, seqs).long()
        slots = tables[:, :, None] * size + torch.arange(size, device=tables.device)
        return slots.view(len(seqs), -1)[:, :longest]


class PagedTorchBackend(AttentionBackend):
    """Keeps the plan of the step it last saw, and the memory into which it gathers.

    That memory grows to the largest gather: BATCH_BYTES, or one layer's K and V of the longest sequence that is
    gathered whole.
    """

    name = "paged_torch"

    def __init__(self, num_heads: int, num_kv_heads: int, head_size: int, scale: float) -> None:
        super().__init__(num_heads, num_kv_heads, head_size, scale)
        self._plan: Plan | None = None
        self._scratch = torch.empty(0)

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        return None

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        if self._plan is None or not self._plan.matches(metadata, kv_cache):
            self._plan = Plan(metadata, kv_cache)
        plan = self._plan
        queries = q.to(kv_cache.dtype)  # attention is computed in the dtype in which K and V are kept
        keys, values = kv_cache.unbind(0)  # [num_blocks, block_size, num_kv_heads, head_size]
        out = torch.empty_like(queries)
        if plan.together:
            attended = self._decode_together(queries.index_select(0, plan.order), keys, values, plan.together)
            out.index_copy_(0, plan.order, attended)
        for seq in plan.alone:
            mine = queries[seq.start : seq.end]
            if len(seq.pieces) > 1:
                out[seq.start : seq.end] = self._decode_chunks(mine, keys, values, seq.pieces)
                continue
            k, v = (rows.transpose(0, 1) for rows in self._read(*seq.pieces[0], keys, values))
            attended = self._decode(mine, k, v) if len(mine) == 1 else self._prefill(mine, k, v, plan.mask)
            out[seq.start : seq.end] = attended
        return out.to(q.dtype)

    def _read(self, rows: Rows, num_tokens: int, *caches: torch.Tensor) -> list[torch.Tensor]:
        """The first tokens in those rows of each cache [num_tokens, num_kv_heads, head_size], good until the next call.

        Gathers go into the same memory again and again: fresh memory is slower to write (page faults) than the rows
        are to read.
        """
        taken = []
        if isinstance(rows, slice):
            taken = [cache[rows] for cache in caches]
        else:
            size = len(rows) * caches[0].stride(0)
            memory = self._memory(size * len(caches), caches[0])
            for place, cache in enumerate(caches):
                out = memory[place * size : (place + 1) * size].view(len(rows), *cache.shape[1:])
                taken.append(torch.index_select(cache, 0, rows, out=out))
        return [tokens.view(-1, self.num_kv_heads, self.head_size)[:num_tokens] for tokens in taken]

    def _memory(self, size: int, like: torch.Tensor) -> torch.Tensor:
        if self._scratch.numel() < size or self._scratch.dtype != like.dtype:
            with torch.inference_mode(False):  # an inference tensor could not be written outside of that mode
                self._scratch = torch.empty(size, dtype=like.dtype, device=like.device)
        return self._scratch

    def _decode(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The one query [1, num_heads, head_size] of a sequence; k and v [num_kv_heads, seq_len, head_size]."""
        return F.scaled_dot_product_attention(self._grouped(q), k[None], v[None], scale=self.scale).view_as(q)

    def _decode_together(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, batches: list[Together]
    ) -> torch.Tensor:
        """q [num_seqs of all batches, num_heads, head_size]: one query of each sequence, batch by batch."""
        keys, values, outs = keys.flatten(0, 1), values.flatten(0, 1), []  # a slot is a row
        for batch, mine in zip(batches, q.split([batch.num_seqs for batch in batches]), strict=True):
            k, v = (
                rows.view(batch.num_seqs, batch.longest, self.num_kv_heads, self.head_size).transpose(1, 2)
                for rows in self._read(batch.slots, len(batch.slots), keys, values)
            )
            attended = F.scaled_dot_product_attention(self._grouped(mine), k, v, attn_mask=batch.mask, scale=self.scale)
            outs.append(attended.reshape(mine.shape))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _decode_chunks(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, pieces: list[tuple[Rows, int]]
    ) -> torch.Tensor:
        """Attention in three passes that read each K and V once: all scores, their softmax, the weighted sum."""
        grouped = self._grouped(q)[0] * self.scale
        scores = []  # [num_kv_heads, group_size, num_tokens] each; bmm into a part of one tensor takes 30% longer
        for rows, num_tokens in pieces:
            (k,) = self._read(rows, num_tokens, keys)
            scores.append(grouped.bmm(k.permute(1, 2, 0)))
        weights = torch.cat(scores, dim=-1).softmax(dim=-1)
        weighted, done = torch.zeros_like(grouped), 0
        for rows, num_tokens in pieces:
            (v,) = self._read(rows, num_tokens, values)
            weighted.baddbmm_(weights[..., done : done + num_tokens], v.transpose(0, 1))
            done += num_tokens
        return weighted.view_as(q)

    def _prefill(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """q [num_queries, num_heads, head_size] at the last positions of k and v [num_kv_heads, seq_len, head_size]."""
        num_queries, seq_len = q.shape[0], k.shape[1]
        if mask is None or num_queries == seq_len:
            return self._attend(q, k, v, None)
        outs, seen = [], seq_len - num_queries
        for turn in q.split(len(mask)):
            seen += len(turn)
            outs.append(self._attend(turn, k[:, :seen], v[:, :seen], mask[-len(turn) :, -seen:]))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        attended = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k[None],
            v[None],
            attn_mask=mask,
            is_causal=mask is None,
            scale=self.scale,
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1)

    def _grouped(self, q: torch.Tensor) -> torch.Tensor:
        """[n, num_heads, head_size] -> [n, num_kv_heads, group_size, head_size].

        In a decode the query heads of a group read the same keys, with no mask. So they count as several queries of one
        KV head, and K and V are not repeated.
        """
        return q.view(-1, self.num_kv_heads, self.group_size, self.head_size)


def _consecutive(blocks: list[int]) -> bool:
    return blocks == list(range(blocks[0], blocks[0] + len(blocks)))


def _batches(decodes: list[tuple[int, int]], token_bytes: int) -> list[list[int]]:
    """Groups (seq_len, sequence) such that neither a gather nor the padding in it grows large; longest first."""
    batches: list[list[int]] = []
    longest = padding = 0
    for seq_len, seq in sorted(decodes, reverse=True):
        padding += (longest - seq_len) * token_bytes
        too_large = batches and (len(batches[-1]) + 1) * longest * token_bytes > BATCH_BYTES
        if not batches or too_large or padding > PADDING_BYTES:
            batches.append([])
            longest, padding = seq_len, 0
        batches[-1].append(seq)
    return batches


def _tail_mask(num_queries: int, seq_len: int, device: torch.device) -> torch.Tensor:
    """True where a query sees a key, for the last `num_queries` positions of `seq_len`.

    Its lower right corner is the mask of fewer queries and shorter sequences, so one mask serves them all.
    """
    return torch.ones(num_queries, seq_len, dtype=torch.bool, device=device).tril(seq_len - num_queries)
