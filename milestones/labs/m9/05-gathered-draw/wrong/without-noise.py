def part_winners(logits: Tensor, noise: Tensor, first_token: int) -> Tensor:
    best, columns = logits.double().max(dim=1)
    return torch.stack([best, (columns + first_token).double()], dim=1)
