class PagedTorchBackend:
    def _decode(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        grouped = q.view(self.num_kv_heads, self.group_size, self.head_size)
        powers = (grouped @ k.transpose(1, 2) * self.scale).exp()
        return (powers / powers.sum(dim=-1, keepdim=True) @ v).reshape(q.shape)
