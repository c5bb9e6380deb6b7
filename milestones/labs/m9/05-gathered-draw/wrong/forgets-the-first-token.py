def part_winners(logits: Tensor, noise: Tensor, first_token: int) -> Tensor:
    scores = logits.double() - noise.double().log()
    best, columns = scores.max(dim=1)
    return torch.stack([best, columns.double()], dim=1)
