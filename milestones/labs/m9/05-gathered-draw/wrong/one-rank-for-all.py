def draw_winners(winners: Sequence[Tensor]) -> Tensor:
    parts = torch.stack(list(winners))
    rank = int(parts[:, :, 0].max(dim=1).values.argmax())
    return parts[rank, :, 1].long()
