class RowParallelMethod:
    def create_weights(self, layer: Linear, *, bias: bool) -> None:
        self.inner.create_weights(layer, bias=bias if self.group.rank == 0 else False)

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        summand = self.inner.apply(layer, x).clone()
        total = self.group.all_reduce(summand)
        return total
