class Codes:
    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        codes = self.values.float().unflatten(1, (-1, self.group_size))
        if self.zero is not None:
            codes = codes - self.zero.float()[..., None]
        return x.float() @ (codes * self.scale[..., None]).flatten(1).T
