def group_rows(slots):
    found = slots[slots >= 0].unique()
    groups = [(slots == slot).nonzero().flatten() for slot in found.tolist()]
    none = torch.empty(0, dtype=torch.int64)
    ends = torch.tensor([len(group) for group in groups], dtype=torch.int64).cumsum(0)
    return Groups(found, ends, torch.cat([none, *groups]))
