def put_back(rows: torch.Tensor, groups: Groups, weights: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(len(weights), rows.shape[1])
    for row, pair in zip(rows, groups.order.tolist()):
        out[pair // weights.shape[1]] += row * weights.flatten()[pair]
    return out.to(rows.dtype)
