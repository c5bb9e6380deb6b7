class PagedTorchBackend:
    def _decode(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        grouped = q.view(1, self.group_size, self.num_kv_heads, self.head_size).transpose(1, 2)
        attended = F.scaled_dot_product_attention(grouped, k[None], v[None], scale=self.scale)
        return attended.transpose(1, 2).reshape(q.shape)
