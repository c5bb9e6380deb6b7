class PagedTorchBackend:
    def _decode(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        grouped = q.view(1, self.num_kv_heads, self.group_size, self.head_size)
        return F.scaled_dot_product_attention(grouped, k[None], v[None]).reshape(q.shape)
