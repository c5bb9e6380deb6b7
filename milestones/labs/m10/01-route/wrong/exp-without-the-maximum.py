def route(logits: torch.Tensor, top_k: int, *, renormalize: bool) -> Routing:
    grown = logits.float().exp()
    weights, experts = (grown / grown.sum(-1, keepdim=True)).sort(dim=-1, descending=True, stable=True)
    weights, experts = weights[:, :top_k], experts[:, :top_k]
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return Routing(weights, experts)
