def draw_winners(winners: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(winners)[:, :, 1].amax(dim=0).long()
