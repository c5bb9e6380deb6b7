class Codes:
    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        grouped = x.unflatten(1, (-1, self.group_size))
        codes = self.values.to(x.dtype).unflatten(1, (-1, self.group_size))
        sums = torch.einsum("tgk,ogk->tog", grouped, codes)
        if self.zero is not None:
            sums = sums - self.zero * grouped.sum(2)[:, None]
        return (sums * self.scale).sum(2)
