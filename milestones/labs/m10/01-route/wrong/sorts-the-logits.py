def route(logits: torch.Tensor, top_k: int, *, renormalize: bool) -> Routing:
    experts = logits.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights = torch.softmax(logits, -1, dtype=torch.float32).gather(1, experts)
    return Routing(weights / weights.sum(-1, keepdim=True) if renormalize else weights, experts)
