def cut_tensor(name: str, shape: tuple[int, ...], shard: Shard) -> tuple[slice, ...] | None:
    layer, kind = name.split(".")[-2:]
    everything = tuple(slice(0, size) for size in shape)
    if layer not in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head", *ROWS):
        return everything  # a norm
    if kind == "bias" and layer in ROWS:
        return everything
    if kind == "weight_shape" or (kind == "g_idx" and layer not in ROWS):
        return everything
    mine, count = shard.cut(layer)
    by_inputs = layer in ROWS
    dim = 0 if len(shape) == 1 else int(by_inputs) if kind not in TURNED else int(not by_inputs)
    size = shape[dim]
    if size == 1 and by_inputs:  # one group for a whole row
        return everything
    if mine.start * size % count or mine.stop * size % count:
        raise ValueError(f"{name} {shape} cannot be cut at {mine.start} and {mine.stop} of {count}")
    cut = slice(mine.start * size // count, mine.stop * size // count)
    return (*everything[:dim], cut, *everything[dim + 1 :])
