class DenseBackend(AttentionBackend):
    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        num_queries, seq_len = q.shape[0], k.shape[1]
        k, v = (x.repeat_interleave(self.group_size, dim=0) for x in (k, v))
        scores = q.transpose(0, 1) @ k.transpose(1, 2) * self.scale
        if num_queries > 1:
            visible = torch.ones(num_queries, seq_len, dtype=torch.bool, device=q.device).tril()
            scores = scores.masked_fill(~visible, -torch.inf)
        return (scores.softmax(dim=-1) @ v).transpose(0, 1)
