def to_codes(grouped: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, bits: int) -> torch.Tensor:
    return ((grouped / scale[..., None]).round() + zero[..., None]).to(torch.int8)
