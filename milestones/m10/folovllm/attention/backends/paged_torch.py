"""Paged attention in plain torch: K and V are read through the block table, so the blocks may be anywhere.

    blocks of the cache   [0: null] [1: b0..] [2: a0..] [3: c..] [4: a16..] [5: b16..]      block tables  a: 2 4
    gathered for a        [a0 .. a15][a16 ..                                                              b: 1 5

torch has no operator that follows a block table, so a sequence's blocks are copied to be side by side, and
torch's attention reads the copy. Blocks that follow each other are a slice of the cache already. Sequences are computed
one after the other.

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


class PagedTorchBackend(AttentionBackend):
    name = "paged_torch"

    @classmethod
    def unavailable_reason(cls, device: torch.device) -> str | None:
        return None

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        queries = q.to(kv_cache.dtype)  # attention is computed in the dtype in which K and V are kept
        out = torch.empty_like(queries)
        for seq, (start, end, _) in enumerate(metadata.spans):
            attend = self._decode if end - start == 1 else self._prefill
            if end > start:
                out[start:end] = attend(queries[start:end], *self._read(kv_cache, metadata, seq))
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

    def _decode(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """One query, q [1, num_heads, head_size], of all of k and v [num_kv_heads, seq_len, head_size].

        The query heads of a group read the same keys. So they count as several queries of one KV head, and K and V are
        not repeated.
        """
        grouped = q.view(1, self.num_kv_heads, self.group_size, self.head_size)
        return F.scaled_dot_product_attention(grouped, k[None], v[None], scale=self.scale).reshape(q.shape)

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
