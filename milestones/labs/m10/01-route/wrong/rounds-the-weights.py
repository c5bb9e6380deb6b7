def route(logits: torch.Tensor, top_k: int, *, renormalize: bool) -> Routing:
    weights, experts = torch.softmax(logits, -1).sort(dim=-1, descending=True, stable=True)
    weights, experts = weights[:, :top_k].float(), experts[:, :top_k]
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return Routing(weights, experts)
