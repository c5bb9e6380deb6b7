def choose_grid(grouped: torch.Tensor, *, bits: int, symmetric: bool) -> tuple[torch.Tensor, torch.Tensor]:
    last = 2 ** (bits - 1) - 1
    if symmetric:
        size = grouped.abs().max(dim=-1).values.float()
        return torch.where(size == 0, 1.0, size / last), torch.zeros(size.shape, dtype=torch.int8)
    ends = torch.stack([grouped.min(-1).values, grouped.max(-1).values, torch.zeros(grouped.shape[:-1])])
    low, high = ends.min(0).values, ends.max(0).values
    scale = torch.where(high == low, 1.0, (high - low) / (2**bits - 1))
    return scale, (torch.round(-low / scale) - 2 ** (bits - 1)).clamp(-last - 1, last).to(torch.int8)


def to_codes(grouped: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, bits: int) -> torch.Tensor:
    first, last = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    steps = torch.round(grouped / scale.unsqueeze(-1))
    return torch.minimum(torch.maximum(steps + zero.unsqueeze(-1), torch.tensor(first)), torch.tensor(last)).char()
