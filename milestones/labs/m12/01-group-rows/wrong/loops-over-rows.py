def group_rows(slots):
    groups = {}
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            groups.setdefault(slot, []).append(row)
    found = sorted(groups)
    rows = [row for slot in found for row in groups[slot]]
    counts = torch.tensor([len(groups[slot]) for slot in found], dtype=torch.int64)
    found, rows = (torch.tensor(each, dtype=torch.int64) for each in (found, rows))
    return Groups(found, counts.cumsum(0), rows)
