def kv_heads_of(count: int, rank: int, world_size: int) -> range:
    return range(rank * count // world_size, (rank + 1) * count // world_size)
