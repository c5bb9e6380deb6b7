def draw_exponential_race(candidates: Candidates, noise: Tensor) -> Tensor:
    return _as_token_ids(candidates.ids, (candidates.weights / noise).argmax(dim=-1, keepdim=True))
