def route(logits: torch.Tensor, top_k: int, *, renormalize: bool) -> Routing:
    values, experts = logits.float().sort(dim=-1, descending=True, stable=True)
    return Routing(torch.softmax(values[:, :top_k], -1), experts[:, :top_k])
