class PagedTorchBackend:
    def _decode(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        grouped = q.view(-1, self.num_kv_heads, self.group_size, self.head_size)
        return F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask).reshape(q.shape)
