def draw_winners(winners: list[torch.Tensor]) -> torch.Tensor:
    parts = torch.stack(winners)
    rank = int(parts[:, :, 0].max(dim=1).values.argmax())
    return parts[rank, :, 1].long()
