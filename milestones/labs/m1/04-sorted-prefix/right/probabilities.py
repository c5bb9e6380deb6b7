def keep_prefix(logits: Tensor, filters: Filters, width: int) -> Candidates:
    values, ids = top_k(logits, width)
    inside = torch.arange(width, device=logits.device) < filters.top_k
    scaled = values.double() / filters.temperature
    shares = scaled.masked_fill(~inside, -torch.inf).softmax(dim=-1)
    before = shares.cumsum(dim=-1).roll(1, dims=-1)
    before[:, 0] = 0.0
    weights = (scaled - scaled[:, :1]).exp()
    out = ~inside | (before >= filters.top_p) | (weights < filters.min_p)
    out[:, 0] = False
    keep = torch.where(out.any(dim=-1), out.int().argmax(dim=-1), width).unsqueeze(-1)  # the first that is out
    return Candidates(weights, ids, keep)
