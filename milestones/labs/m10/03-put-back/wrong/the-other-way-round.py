def put_back(rows: torch.Tensor, groups: Groups, weights: torch.Tensor) -> torch.Tensor:
    parts = (rows[groups.order].unflatten(0, weights.shape) * weights.unsqueeze(2)).unbind(1)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total.to(rows.dtype)
