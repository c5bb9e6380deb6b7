def stack_pairs(found, parts, inputs):
    none = torch.empty(0, inputs)
    pairs = [found.get(part, (none, torch.empty(outs, 0))) for part, outs in parts.items()]
    a = torch.cat([a for a, _ in pairs])
    rows = [torch.cat([b] + [torch.zeros(len(b), 1)] * (len(a) - b.shape[1]), 1) for _, b in pairs]
    return a, torch.cat(rows)
