class Codes:
    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        grouped = x.float().unflatten(1, (-1, self.group_size))
        codes = self.values.float().unflatten(1, (-1, self.group_size))
        sums = torch.einsum("tgk,ogk->tog", grouped, codes)
        if self.zero is not None:
            sums = sums - self.zero * x.float().sum(1)[:, None, None]
        return (sums * self.scale).sum(2)
