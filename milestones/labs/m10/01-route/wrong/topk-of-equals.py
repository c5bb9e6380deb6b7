def route(logits: torch.Tensor, top_k: int, *, renormalize: bool) -> Routing:
    weights, experts = torch.softmax(logits, -1, dtype=torch.float32).topk(top_k)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return Routing(weights, experts)
