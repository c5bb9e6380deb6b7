def part_winners(logits: torch.Tensor, noise: torch.Tensor, first_token: int) -> torch.Tensor:
    scores = logits - noise.log()
    best, columns = scores.max(dim=1)
    return torch.stack([best, (columns + first_token).float()], dim=1)
