def kv_heads_of(count: int, rank: int, world_size: int) -> range:
    return range(rank, rank + max(1, count // world_size))
