class RowParallelMethod:
    def create_weights(self, layer: Linear, *, bias: bool) -> None:
        self.inner.create_weights(layer, bias=False)
