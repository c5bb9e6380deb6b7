def part_winners(logits: Tensor, noise: Tensor, first_token: int) -> Tensor:
    scores = logits - noise.log()
    best, columns = scores.max(dim=1)
    return torch.stack([best, (columns + first_token).float()], dim=1)
