def unpack(packed: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    digits = (packed.unsqueeze(-1) >> shifts) & (2**bits - 1)
    return digits.to(torch.uint8).flatten(-2)
