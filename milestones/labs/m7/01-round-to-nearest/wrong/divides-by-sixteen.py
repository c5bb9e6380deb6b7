def choose_grid(grouped: torch.Tensor, *, bits: int, symmetric: bool) -> tuple[torch.Tensor, torch.Tensor]:
    lowest, highest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    scale = torch.maximum(-low, high) / 2 ** (bits - 1) if symmetric else (high - low) / 2**bits
    scale = scale.where(scale > 0, 1.0)
    zero = torch.zeros_like(scale) if symmetric else (lowest - low / scale).round().clamp(lowest, highest)
    return scale, zero.to(torch.int8)
