class DenseBackend(AttentionBackend):
    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        outs = []
        for tokens, _, blocks in metadata:
            k, v = kv_cache[:, blocks[0]].transpose(1, 2).unbind(0)
            outs.append(self._attend(q[tokens].to(kv_cache.dtype), k, v))
        return torch.cat(outs).to(q.dtype)
