class QuantizedLinear:
    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        if self.scheme.activation_bits is not None:
            codes, _ = round_rows(x)
            x = codes.to(x.dtype)
        return F.linear(x, layer.weight, layer.bias)
