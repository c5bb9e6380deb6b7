def part_winners(logits: torch.Tensor, noise: torch.Tensor, first_token: int) -> torch.Tensor:
    scores = logits.double() + noise.double().log()
    best, columns = scores.max(dim=1)
    return torch.stack([best, (columns + first_token).double()], dim=1)
