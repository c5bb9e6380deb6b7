class DenseBackend:
    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        num_queries, seq_len = q.shape[0], k.shape[1]
        k = k.repeat_interleave(self.group_size, dim=0)
        v = v.repeat_interleave(self.group_size, dim=0)
        powers = (q.transpose(0, 1) @ k.transpose(1, 2) * self.scale).exp()
        powers = powers.tril(seq_len - num_queries)
        return (powers / powers.sum(dim=-1, keepdim=True) @ v).transpose(0, 1)
