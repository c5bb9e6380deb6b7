def kv_heads_of(count: int, rank: int, world_size: int) -> range:
    return part(count, rank, world_size) if count >= world_size else range(rank, rank + 1)
