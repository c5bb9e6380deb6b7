def put_back(rows: torch.Tensor, groups: Groups, weights: torch.Tensor) -> torch.Tensor:
    back = torch.empty_like(rows)
    back[groups.order] = rows
    return back.unflatten(0, weights.shape).float().sum(1).to(rows.dtype)
