def stack_pairs(found, parts, inputs):
    names = [*found, *(part for part in parts if part not in found)]
    pairs = [found.get(part, (torch.empty(0, inputs), torch.empty(parts[part], 0))) for part in names]
    return torch.cat([a for a, _ in pairs]), torch.block_diag(*(b for _, b in pairs))
