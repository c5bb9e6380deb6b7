def group_rows(slots):
    order = torch.argsort(slots, stable=True)
    found, counts = torch.unique_consecutive(slots[order], return_counts=True)
    return Groups(found, counts.cumsum(0), order)
