class DenseBackend:
    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        first = k.shape[1] - q.shape[0]
        out = torch.empty_like(q)
        for place, query in enumerate(q):
            for head in range(self.num_heads):
                keys, values = (seen[head // self.group_size, : first + place + 1] for seen in (k, v))
                out[place, head] = torch.softmax(keys @ query[head] * self.scale, dim=0) @ values
        return out
