def keep_prefix(logits: Tensor, filters: Filters, width: int) -> Candidates:
    values, ids = top_k(logits, width)
    values = values.double()
    weights = ((values - values[:, :1]) / filters.temperature).exp()
    cumulative = weights.cumsum(dim=-1)
    limit = filters.top_k.clamp(max=width)
    mass = cumulative[:, -1:]
    kept = (cumulative - weights < filters.top_p * mass) & (weights >= filters.min_p)
    keep = kept.sum(dim=-1, keepdim=True).clamp(min=1).minimum(limit)
    return Candidates(weights, ids, keep)
