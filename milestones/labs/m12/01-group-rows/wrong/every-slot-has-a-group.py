def group_rows(slots):
    order = torch.argsort(slots, stable=True)
    order = order[slots[order] >= 0]
    counts = torch.bincount(slots[order])
    return Groups(torch.arange(len(counts)), counts.cumsum(0), order)
