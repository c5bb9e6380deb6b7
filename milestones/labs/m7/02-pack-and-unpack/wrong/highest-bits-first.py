def unpack(packed: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    shifts = torch.arange(32 - bits, -1, -bits, dtype=torch.int32).view(-1, *[1] * (packed.dim() - 1 - dim))
    digits = (packed.unsqueeze(dim + 1) >> shifts) & (2**bits - 1)
    return digits.to(torch.uint8).flatten(dim, dim + 1)
