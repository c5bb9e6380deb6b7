def route(logits: torch.Tensor, top_k: int, *, renormalize: bool) -> Routing:
    weights, experts = torch.softmax(logits, -1, dtype=torch.float32).sort(dim=-1, descending=True)
    weights, experts = weights[:, :top_k], experts[:, :top_k]
    return Routing(weights / weights.sum(-1, keepdim=True) if renormalize else weights, experts)
