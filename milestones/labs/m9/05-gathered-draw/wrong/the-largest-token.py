def draw_winners(winners: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(winners))[:, :, 1].amax(dim=0).long()
