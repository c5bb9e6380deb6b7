"""Dense attention: every sequence's K and V are one contiguous stretch of the cache.

    kv_cache[0, block]   k0 k1 k2 k3 .. k(n-1) -- -- -- --      one block per sequence, as long as it may ever get
                         |--- read as a slice ---|-- reserved, unused --|

A slice needs no gathering, so this is the simplest reader there is and the reference for others. Its price is what
is reserved and never used.

vLLM: none (v1/attention/backends/cpu_attn.py is its CPU reader of a paged cache)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from folovllm.attention.backend import AttentionBackend
from folovllm.attention.metadata import AttentionMetadata


class DenseBackend(AttentionBackend):
    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        q_cache = q.to(kv_cache.dtype)  # attention is computed in the dtype in which K and V are kept
        outs = []
        for (start, end, seq_len), (block, *_) in zip(metadata.spans, metadata.block_ids, strict=True):
            k, v = kv_cache[:, block, :seq_len].transpose(1, 2).unbind(0)  # [num_kv_heads, seq_len, head_size]
            outs.append(self._attend(q_cache[start:end], k, v))
        return (outs[0] if len(outs) == 1 else torch.cat(outs)).to(q.dtype)

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """One sequence: q [num_queries, num_heads, head_size] at the last positions of k, v."""
        num_queries, seq_len = q.shape[0], k.shape[1]
        if num_queries == 1:
            # Decode: the query heads of a group read the same keys and no mask applies. So they count as several
            # queries of one KV head, [num_kv_heads, group_size, head_size], and K and V are not repeated.
            grouped = q.view(self.num_kv_heads, self.group_size, self.head_size)
            return F.scaled_dot_product_attention(grouped[None], k[None], v[None], scale=self.scale).reshape(q.shape)
        whole_prompt = num_queries == seq_len
        mask = None
        if not whole_prompt:  # queries start in the middle: query j sees keys up to seq_len - num_queries + j
            ones = torch.ones(num_queries, seq_len, dtype=torch.bool, device=q.device)
            mask = ones.tril(seq_len - num_queries)
        attended = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k[None],
            v[None],
            attn_mask=mask,
            is_causal=whole_prompt,
            scale=self.scale,
            enable_gqa=True,
        )
        return attended[0].transpose(0, 1)
