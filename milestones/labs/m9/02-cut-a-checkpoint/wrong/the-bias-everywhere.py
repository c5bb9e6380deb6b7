def cut_tensor(name: str, shape: tuple[int, ...], shard: Shard) -> tuple[slice, ...] | None:
    layer, kind = name.split(".")[-2:]
    everything, by_inputs = tuple(slice(0, size) for size in shape), layer in ROWS
    if by_inputs and kind == "bias":
        return everything
    if layer.endswith("norm") or kind in ("weight_shape", "inv_freq") or (kind == "g_idx" and not by_inputs):
        return everything
    mine, count = shard.cut(layer)
    dim = 0 if len(shape) == 1 else int(by_inputs != (kind in TURNED))
    size = shape[dim]
    if size == 1 and by_inputs:  # one group for a whole row
        return everything
    cut = share_of(f"{name} {shape}", size, mine, count)
    return (*everything[:dim], cut, *everything[dim + 1 :])
