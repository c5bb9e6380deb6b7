class DenseBackend(AttentionBackend):
    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        outs = []
        for (start, end, _), blocks in zip(metadata.spans, metadata.block_ids, strict=True):
            k, v = kv_cache[:, blocks[0]].transpose(1, 2).unbind(0)
            outs.append(self._attend(q[start:end].to(kv_cache.dtype), k, v))
        return torch.cat(outs).to(q.dtype)
