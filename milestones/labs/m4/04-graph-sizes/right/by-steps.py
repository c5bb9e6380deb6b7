def capture_sizes(max_num_seqs: int) -> list[int]:
    largest = max_num_seqs if max_num_seqs < MAX_GRAPH_SIZE else MAX_GRAPH_SIZE
    sizes, size = set(), 1
    while size < largest:
        sizes.add(size)
        size = size * 2 if size < 8 else size + (8 if size < 256 else 16)
    return sorted(sizes | {largest})


def padded_size(num_seqs: int, sizes: list[int]) -> int | None:
    return min(filter(num_seqs.__le__, sizes), default=None)
