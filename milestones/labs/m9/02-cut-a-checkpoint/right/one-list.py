def cut_tensor(name: str, shape: tuple[int, ...], shard: Shard) -> tuple[slice, ...] | None:
    *_, layer, kind = name.split(".")
    cuts = [slice(0, size) for size in shape]
    rows = layer in ROWS
    if kind == "bias" and rows and shard.rank:
        return None
    linear = layer.endswith(("_proj", "embed_tokens", "lm_head"))
    if not linear or (kind == "bias" and rows) or kind == "weight_shape" or (kind == "g_idx" and not rows):
        return tuple(cuts)
    mine, count = shard.cut(layer)
    dim = 0
    if len(shape) > 1 and rows != (kind in TURNED):
        dim = 1
    size = shape[dim]
    if rows and size == 1:
        return tuple(cuts)
    cuts[dim] = share_of(name, size, mine, count)
    return tuple(cuts)
