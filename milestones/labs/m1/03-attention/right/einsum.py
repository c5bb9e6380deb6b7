class DenseBackend:
    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        out = torch.empty_like(q)
        for (start, end, seq_len), (block, *_) in zip(metadata.spans, metadata.block_ids, strict=True):
            keys, values = kv_cache[0, block, :seq_len], kv_cache[1, block, :seq_len]
            own = q[start:end].to(keys.dtype)
            out[start:end] = self._attend(own, keys.movedim(1, 0), values.movedim(1, 0)).to(q.dtype)
        return out

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        num_queries, seq_len = q.shape[0], k.shape[1]
        grouped = q.unflatten(1, (self.num_kv_heads, self.group_size))
        scores = torch.einsum("qhgd,hkd->hgqk", grouped, k) * self.scale
        place = torch.arange(seq_len, device=q.device)
        ahead = place > place[seq_len - num_queries :, None]
        shares = scores.masked_fill(ahead, -torch.inf).log_softmax(dim=-1).exp()
        return torch.einsum("hgqk,hkd->qhgd", shares, v).flatten(1, 2)
