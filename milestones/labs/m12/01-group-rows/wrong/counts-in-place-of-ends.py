def group_rows(slots):
    order = torch.argsort(slots, stable=True)
    order = order[slots[order] >= 0]
    found, counts = torch.unique_consecutive(slots[order], return_counts=True)
    return Groups(found, counts, order)
