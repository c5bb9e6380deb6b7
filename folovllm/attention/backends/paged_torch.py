"""Paged attention in plain torch: K and V are read through the block table, so the blocks may be anywhere.

    blocks of the cache   [0: null] [1: b0..] [2: a0..] [3: c..] [4: a16..] [5: b16..]      block tables  a: 2 4
    gathered for a        [a0 .. a15][a16 ..                                                              b: 1 5

torch has no operator that follows a block table, so a sequence's blocks are copied to be side by side, and
torch's attention reads the copy. Blocks that follow each other are a slice of the cache already. Sequences are computed
one after the other.

A layer with a window reads the keys that some query of the step sees and no others: what is before them may be freed.

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
    supports_extras = True

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
        """K and V of a sequence, [2, num_kv_heads, seq_len, head_size]; of a layer with a window from the first key on
        that a query of this step sees."""
        block_size, (start, end, seq_len) = kv_cache.shape[2], metadata.spans[seq]
        begin = self._first_key(seq_len - (end - start))
        places = slice(begin // block_size, -(-seq_len // block_size))
        blocks = metadata.block_ids[seq][places]
        if blocks == list(range(blocks[0], blocks[0] + len(blocks))):
            found = kv_cache[:, blocks[0] : blocks[0] + len(blocks)]
        else:
            found = kv_cache.index_select(1, metadata.block_tables[seq, places])
        skipped = places.start * block_size
        return found.flatten(1, 2)[:, begin - skipped : seq_len - skipped].transpose(1, 2)

    def _first_key(self, position: int) -> int:
        """The first key that the query at `position` sees."""
        window = self.extras.sliding_window
        return 0 if window is None else max(0, position - window + 1)

    def _decode(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """One query, q [1, num_heads, head_size], of all of k and v [num_kv_heads, seq_len, head_size].

        The query heads of a group read the same keys. So they count as several queries of one KV head, and K and V are
        not repeated.
        """
        if self._scores_are_edited:
            return self._attend_in_steps(q, k, v, None)
        grouped = q.view(1, self.num_kv_heads, self.group_size, self.head_size)
        return F.scaled_dot_product_attention(grouped, k[None], v[None], scale=self.scale).reshape(q.shape)

    def _prefill(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [num_queries, num_heads, head_size] at the last positions of k and v [num_kv_heads, seq_len, head_size]."""
        num_queries, seq_len, window = len(q), k.shape[1], self.extras.sliding_window
        if num_queries == seq_len and not self._scores_are_edited and (window is None or seq_len <= window):
            return self._attend(q, k, v, None)
        outs, seen = [], seq_len - num_queries
        for turn in q.split(MASKED_QUERIES):
            begin, seen = self._first_key(seen), seen + len(turn)
            mask = tail_mask(len(turn), seen - begin, q.device)
            if window is not None:
                mask = mask.triu(seen - begin - len(turn) - window + 1)
            attend = self._attend_in_steps if self._scores_are_edited else self._attend
            outs.append(attend(turn, k[:, begin:seen], v[:, begin:seen], mask))
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

    @property
    def _scores_are_edited(self) -> bool:
        """torch's attention has no place for it."""
        return self.extras.logits_soft_cap is not None or self.extras.sinks is not None

    def _attend_in_steps(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """As _attend, with a soft-cap and sinks. mask None: every query sees every key. The softmax is in float32."""
        num_queries, num_keys, cap, sinks = len(q), k.shape[1], self.extras.logits_soft_cap, self.extras.sinks
        grouped = q.view(num_queries, self.num_kv_heads, -1).transpose(0, 1)  # heads of a group are side by side
        grouped = grouped.reshape(self.num_kv_heads, num_queries * self.group_size, self.head_size)
        scores = (grouped @ k.transpose(1, 2)).float() * self.scale
        scores = scores.view(self.num_kv_heads, num_queries, self.group_size, num_keys)
        if cap is not None:
            scores = cap * torch.tanh(scores / cap)
        if mask is not None:
            scores = scores.masked_fill(~mask[None, :, None], -torch.inf)
        if sinks is not None:
            of_heads = sinks.float().view(self.num_kv_heads, 1, self.group_size, 1)
            scores = torch.cat([scores, of_heads.expand(-1, num_queries, -1, -1)], dim=-1)
        weights = scores.softmax(dim=-1)[..., :num_keys].to(v.dtype).flatten(1, 2)
        return (weights @ v).view(self.num_kv_heads, num_queries, -1).transpose(0, 1).reshape(q.shape)


def tail_mask(num_queries: int, seq_len: int, device: torch.device) -> torch.Tensor:
    """True where a query sees a key, for the last `num_queries` positions of `seq_len`."""
    return torch.ones(num_queries, seq_len, dtype=torch.bool, device=device).tril(seq_len - num_queries)
