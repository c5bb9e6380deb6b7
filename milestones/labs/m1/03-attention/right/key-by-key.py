class DenseBackend:
    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        keys, values = kv_cache
        pieces = []
        for (start, end, seq_len), (block, *_) in zip(metadata.spans, metadata.block_ids, strict=True):
            own = slice(None, seq_len)
            pieces.append(
                self._attend(q[start:end], keys[block][own].permute(1, 0, 2), values[block][own].permute(1, 0, 2))
            )
        return torch.cat(pieces)

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """A key at a time, with a running maximum."""
        k, v = (x.repeat_interleave(self.group_size, dim=0) for x in (k, v))
        first = k.shape[1] - len(q)
        top = torch.full(q.shape[:2], -torch.inf, dtype=k.dtype)
        total = torch.zeros_like(top)
        acc = torch.zeros(q.shape, dtype=k.dtype)
        for at in range(k.shape[1]):
            rows = slice(max(0, at - first), None)  # the queries that see it
            score = (q[rows].to(k.dtype) * k[:, at]).sum(-1) * self.scale
            new = top[rows].maximum(score)
            rescale, weight = (top[rows] - new).exp(), (score - new).exp()
            top[rows], total[rows] = new, total[rows] * rescale + weight
            acc[rows] = acc[rows] * rescale[..., None] + weight[..., None] * v[:, at]
        return (acc / total[..., None]).to(q.dtype)
