def group_layers(windows, kv_heads, block_size, chunk, *, one_table=False):
    kinds = {}
    for layer in range(len(kv_heads)):
        kinds.setdefault(windows[layer] if windows else None, []).append(layer)
    if len(kinds) > 1 and (one_table or len(set(kv_heads)) > 1):
        kinds = {None: list(range(len(kv_heads)))}
    fewest = min(map(len, kinds.values()))
    size = fewest
    groups = [
        (window, tuple(kinds[window][first : first + size]))
        for window in sorted(kinds, key=lambda each: (each is not None, -(each or 0)))
        for first in range(0, len(kinds[window]), size)
    ]
    of_groups, layers = zip(*groups, strict=True)
    return KVCacheGroups(of_groups, layers, block_size, chunk)
