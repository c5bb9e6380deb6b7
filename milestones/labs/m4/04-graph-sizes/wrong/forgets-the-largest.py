def capture_sizes(max_num_seqs: int) -> list[int]:
    largest = min(max_num_seqs, MAX_GRAPH_SIZE)
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, MAX_GRAPH_SIZE + 1, 16)]
    return [size for size in sizes if size <= largest]
