"""Paged attention in plain torch: K and V are read through the block table, so the blocks may lie anywhere.

    blocks of the cache   [0: null] [1: b0..] [2: a0..] [3: c..] [4: a16..] [5: b16..]      block tables  a: 2 4
    gathered for a        [a0 .. a15][a16 ..                                                              b: 1 5

torch has no operator that follows a block table, so a sequence's blocks are copied to where they lie side by side, and
torch's attention reads the copy. Blocks that follow each other are a slice of the cache already. Prompts are computed
one after the other, decodes together, padded to the longest of them.

Slots that no token has written (the rest of a last block) may hold NaN. They take no part in any product: zero times
NaN is NaN, so a mask alone would not do.

vLLM: v1/attention/backends/cpu_attn.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from folovllm.attention.backend import AttentionBackend
from folovllm.attention.metadata import AttentionMetadata

# A mask is [queries, keys]. To keep it small, at most this many queries are computed at a time.
MASKED_QUERIES = 512
# Decodes are gathered together up to this many bytes. One by one, 32 short sequences took 1.8 times as long.
BATCH_BYTES = 8 << 20


class PagedTorchBackend(AttentionBackend):
    name = "paged_torch"

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        return None

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        queries = q.to(kv_cache.dtype)  # attention is computed in the dtype in which K and V are kept
        out, decodes = torch.empty_like(queries), []
        for seq, (start, end, seq_len) in enumerate(metadata.spans):
            if end - start == 1:
                decodes.append((seq_len, seq))
            elif end > start:
                out[start:end] = self._prefill(queries[start:end], *self._read(kv_cache, metadata, seq))
        for seqs in batches(decodes, 2 * kv_cache[0, 0, 0].nbytes):
            rows = torch.tensor([metadata.spans[seq][0] for seq in seqs], device=q.device)
            if len(seqs) == 1:
                (k, v), mask = self._read(kv_cache, metadata, seqs[0])[:, None], None
            else:
                (k, v), mask = self._read_together(kv_cache, metadata, seqs)
            out[rows] = self._decode(queries[rows], k, v, mask)
        return out.to(q.dtype)

    def _read(self, kv_cache: torch.Tensor, metadata: AttentionMetadata, seq: int) -> torch.Tensor:
        """K and V of a sequence, [2, num_kv_heads, seq_len, head_size]."""
        block_size, seq_len = kv_cache.shape[2], metadata.spans[seq][2]
        blocks = metadata.block_ids[seq][: -(-seq_len // block_size)]
        first, end = blocks[0], blocks[0] + len(blocks)
        if blocks == list(range(first, end)):
            found = kv_cache[:, first:end]
        else:
            found = kv_cache.index_select(1, metadata.block_tables[seq, : len(blocks)])
        return found.flatten(1, 2)[:, :seq_len].transpose(1, 2)

    def _read_together(
        self, kv_cache: torch.Tensor, metadata: AttentionMetadata, seqs: list[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [2, num_seqs, num_kv_heads, longest, head_size], and a mask [num_seqs, 1, 1, longest], True up to a
        sequence's end. Behind that its first slot is repeated, which holds finite numbers."""
        block_size, device = kv_cache.shape[2], kv_cache.device
        lens = torch.tensor([metadata.spans[seq][2] for seq in seqs], device=device)
        longest = int(lens.max())
        tables = metadata.block_tables[seqs, : -(-longest // block_size)].long()
        slots = (tables[:, :, None] * block_size + torch.arange(block_size, device=device)).flatten(1)[:, :longest]
        written = torch.arange(longest, device=device) < lens[:, None]
        slots = torch.where(written, slots, slots[:, :1])
        found = kv_cache.flatten(1, 2).index_select(1, slots.flatten()).unflatten(1, slots.shape)
        return found.transpose(2, 3), written[:, None, None]

    def _decode(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """One query of each sequence, q [num_seqs, num_heads, head_size]; k and v [num_seqs, num_kv_heads, longest,
        head_size].

        The query heads of a group read the same keys. So they count as several queries of one KV head, and K and V are
        not repeated.
        """
        grouped = q.view(-1, self.num_kv_heads, self.group_size, self.head_size)
        return F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=self.scale).reshape(q.shape)

    def _prefill(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [num_queries, num_heads, head_size] at the last positions of k and v [num_kv_heads, seq_len, head_size]."""
        num_queries, seq_len = len(q), k.shape[1]
        if num_queries == seq_len:
            return self._attend(q, k, v, None)
        outs, seen = [], seq_len - num_queries
        for turn in q.split(MASKED_QUERIES):
            mask = tail_mask(len(turn), seen + len(turn), q.device)
            seen += len(turn)
            outs.append(self._attend(turn, k[:, :seen], v[:, :seen], mask))
        return torch.cat(outs)

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """mask: [num_queries, num_keys], True where a query sees a key; None: query j sees keys 0 .. j."""
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


def tail_mask(num_queries: int, seq_len: int, device: torch.device) -> torch.Tensor:
    """True where a query sees a key, for the last `num_queries` positions of `seq_len`."""
    return torch.ones(num_queries, seq_len, dtype=torch.bool, device=device).tril(seq_len - num_queries)


def batches(decodes: list[tuple[int, int]], token_bytes: int) -> list[list[int]]:
    """Groups (seq_len, sequence) such that no gather, padded to its longest, grows large; longest first."""
    found: list[list[int]] = []
    longest = 0
    for seq_len, seq in sorted(decodes, reverse=True):
        if not found or (len(found[-1]) + 1) * longest * token_bytes > BATCH_BYTES:
            found.append([])
            longest = seq_len
        found[-1].append(seq)
    return found
