class PagedTorchBackend:
    def _grouped(self, q: torch.Tensor) -> torch.Tensor:
        return q.view(-1, self.group_size, self.num_kv_heads, self.head_size).transpose(1, 2)
