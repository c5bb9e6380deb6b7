class DenseBackend(AttentionBackend):
    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        num_queries, seq_len = q.shape[0], k.shape[1]
        k, v = (x.repeat_interleave(self.group_size, dim=0) for x in (k, v))
        scores = q.transpose(0, 1) @ k.transpose(1, 2)
        visible = torch.ones(num_queries, seq_len, dtype=torch.bool, device=q.device).tril(seq_len - num_queries)
        return (scores.masked_fill(~visible, -torch.inf).softmax(dim=-1) @ v).transpose(0, 1)
