def part_winners(logits: torch.Tensor, noise: torch.Tensor, first_token: int) -> torch.Tensor:
    best, columns = (logits.double() - noise.double().log_()).max(dim=1)
    return torch.stack([best, (columns + first_token).double()], dim=1)
