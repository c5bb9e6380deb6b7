def round_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide = x.to(torch.float32)
    largest = wide.abs().max(dim=1).values
    divisor = torch.where(largest == 0, torch.ones_like(largest), largest / 127)
    codes = torch.round(wide / divisor.unsqueeze(1)).to(torch.int8)
    return codes.float(), (largest / 127).unsqueeze(1)


class QuantizedLinear:
    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        if self.scheme.activation_bits is None:
            return F.linear(x, layer.weight, layer.bias)
        codes, scale = round_rows(x)
        meant = torch.einsum("tk,ok->to", (scale * codes).to(x.dtype), layer.weight)
        return meant if layer.bias is None else meant + layer.bias
