def draw_winners(winners: list[torch.Tensor]) -> torch.Tensor:
    best = winners[0]
    for other in winners[1:]:
        best = torch.where(other[:, :1] >= best[:, :1], other, best)
    return best[:, 1].long()
