def keep_prefix(logits: Tensor, filters: Filters, width: int) -> Candidates:
    values, ids = top_k(logits, width)
    exponents = values.double().sub(values.double().amax(-1, keepdim=True)).div(filters.temperature)
    weights = exponents.exp()
    number = torch.ones_like(ids).cumsum(-1)
    inside = number <= filters.top_k
    kept = torch.where(inside, weights, 0.0)
    reached = torch.nn.functional.pad(kept.cumsum(-1)[:, :-1], (1, 0))
    is_out = ~inside | ~(reached < filters.top_p * kept.sum(-1, keepdim=True)) | ~(weights >= filters.min_p)
    stays = (~is_out).long().cumprod(-1)
    stays[:, 0] = 1
    return Candidates(weights, ids, stays.sum(-1, keepdim=True))
