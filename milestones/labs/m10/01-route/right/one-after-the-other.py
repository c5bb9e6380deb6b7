def route(logits: torch.Tensor, top_k: int, *, renormalize: bool) -> Routing:
    left = torch.softmax(logits, -1, dtype=torch.float32)
    weights, experts = [], []
    for _ in range(top_k):
        best = left.argmax(-1, keepdim=True)  # of equal ones the first
        weights.append(left.gather(1, best))
        experts.append(best)
        left = left.scatter(1, best, -1.0)
    found = torch.cat(weights, 1)
    return Routing(found / found.sum(1, keepdim=True) if renormalize else found, torch.cat(experts, 1))
