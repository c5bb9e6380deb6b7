def put_back(rows: torch.Tensor, groups: Groups, weights: torch.Tensor) -> torch.Tensor:
    dtype = rows.dtype
    if dtype == torch.float32:
        rows *= weights.flatten()[groups.order].unsqueeze(1)
    else:
        rows = rows.float() * weights.flatten()[groups.order].unsqueeze(1)
    back = torch.empty_like(rows)
    back[groups.order] = rows
    parts = back.unflatten(0, weights.shape).unbind(1)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total.to(dtype)
