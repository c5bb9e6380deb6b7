def put_back(rows: torch.Tensor, groups: Groups, weights: torch.Tensor) -> torch.Tensor:
    back = torch.empty_like(rows, dtype=torch.float32)
    back[groups.order] = rows * weights.flatten().unsqueeze(1)
    parts = back.unflatten(0, weights.shape).unbind(1)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total.to(rows.dtype)
