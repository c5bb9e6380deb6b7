def keep_prefix(logits: Tensor, filters: Filters, width: int) -> Candidates:
    from bisect import bisect_left
    from itertools import accumulate

    _, ids = top_k(logits, width)
    largest = logits.amax(dim=-1, keepdim=True).double()
    weights = (logits.gather(1, ids).double() - largest).div(filters.temperature).exp()
    keep = []
    for row, row_weights in enumerate(weights.tolist()):
        most = min(filters.top_k[row].item(), width)
        reached = list(accumulate(row_weights[:most]))
        by_mass = bisect_left(reached, filters.top_p[row].item() * reached[-1]) + 1  # the first that reaches the line
        by_ratio = sum(weight >= filters.min_p[row].item() for weight in row_weights)
        keep.append([max(1, min(by_mass, by_ratio, most))])
    return Candidates(weights, ids, torch.tensor(keep))
