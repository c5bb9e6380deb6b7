def kv_heads_of(count: int, rank: int, world_size: int) -> range:
    each = count // world_size
    return range(rank * each, (rank + 1) * each)
