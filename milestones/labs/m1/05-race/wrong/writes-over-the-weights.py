def draw_exponential_race(candidates: Candidates, noise: Tensor) -> Tensor:
    weights = candidates.weights
    if candidates.keep is not None:
        columns = torch.arange(weights.shape[-1], device=weights.device)
        weights.masked_fill_(columns >= candidates.keep, 0.0)
    return _as_token_ids(candidates.ids, (weights / noise).argmax(dim=-1, keepdim=True))
