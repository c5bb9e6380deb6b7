def exponentials(shape: torch.Size, generators: Generators, device: torch.device) -> Tensor:
    return torch.stack([torch.empty(shape[1], device=device).exponential_(generator=own) for own in generators])


def draw_exponential_race(candidates: Candidates, noise: Tensor) -> Tensor:
    time = noise.double().log() - candidates.weights.double().log()
    if candidates.keep is not None:
        place = torch.ones_like(time).cumsum(dim=-1)  # 1, 2, 3, ...
        time = time.where(place <= candidates.keep, torch.inf)
    return _as_token_ids(candidates.ids, time.topk(1, largest=False).indices)
