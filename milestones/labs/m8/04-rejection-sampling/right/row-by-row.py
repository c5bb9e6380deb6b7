def accept_or_replace(target: Tensor, draft: Tensor, drafted: Tensor, generators: Generators) -> tuple[Tensor, Tensor]:
    numbers = uniforms(generators, target.device).squeeze(-1).tolist()
    kept, token_ids = [], []
    for p, q, token_id, number in zip(target.double(), draft.double(), drafted.tolist(), numbers, strict=True):
        lacking = (p - q).clamp(min=0)
        kept.append(bool(lacking.sum() == 0 or number * q[token_id] < p[token_id]))
        if not kept[-1]:
            rest = (number * q[token_id] - p[token_id]) / (q[token_id] - p[token_id])
            line = lacking.cumsum(0)
            token_id = int((line <= rest * line[-1]).sum())
        token_ids.append(token_id)
    return torch.tensor(kept), torch.tensor(token_ids)
