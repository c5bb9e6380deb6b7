def stack_pairs(found, parts, inputs):
    pairs = [found[part] for part in parts if part in found]
    if not pairs:
        return torch.empty(0, inputs), torch.empty(sum(parts.values()), 0)
    return torch.cat([a for a, _ in pairs]), torch.block_diag(*(b for _, b in pairs))
