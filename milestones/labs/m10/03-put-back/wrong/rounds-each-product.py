def put_back(rows: torch.Tensor, groups: Groups, weights: torch.Tensor) -> torch.Tensor:
    back = torch.empty_like(rows)
    back[groups.order] = rows
    parts = (back.unflatten(0, weights.shape) * weights.to(rows.dtype).unsqueeze(2)).float().unbind(1)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total.to(rows.dtype)
