def choose_grid(grouped: torch.Tensor, *, bits: int, symmetric: bool) -> tuple[torch.Tensor, torch.Tensor]:
    lowest, highest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    low, high = grouped.min().clamp(max=0), grouped.max().clamp(min=0)
    scale = torch.maximum(-low, high) / highest if symmetric else (high - low) / (highest - lowest)
    scale = scale.where(scale > 0, 1.0).expand(grouped.shape[:-1])
    zero = torch.zeros_like(scale) if symmetric else (lowest - low / scale).round().clamp(lowest, highest)
    return scale, zero.to(torch.int8)
