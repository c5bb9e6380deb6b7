def put_back(rows: torch.Tensor, groups: Groups, weights: torch.Tensor) -> torch.Tensor:
    place_of = {pair: place for place, pair in enumerate(groups.order.tolist())}
    out = torch.zeros(len(weights), rows.shape[1])
    for token, row in enumerate(weights):
        for place, weight in enumerate(row):
            out[token] += rows[place_of[token * len(row) + place]].float() * weight
    return out.to(rows.dtype)
