class Codes:
    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        grouped = x.float().unflatten(1, (-1, self.group_size))
        codes = self.values.unflatten(1, (-1, self.group_size))
        if self.zero is not None:
            codes = codes - self.zero[..., None]
        return (torch.einsum("tgk,ogk->tog", grouped, codes.float()) * self.scale).sum(2)
