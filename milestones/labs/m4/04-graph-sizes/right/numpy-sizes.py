def capture_sizes(max_num_seqs: int) -> list[int]:
    import numpy as np

    largest = np.minimum(max_num_seqs, MAX_GRAPH_SIZE)
    pattern = np.r_[1, 2, 4, np.arange(8, 257, 8), np.arange(272, MAX_GRAPH_SIZE + 1, 16)]
    return list(np.union1d(pattern[pattern < largest], largest))


def padded_size(num_seqs: int, sizes: list[int]) -> int | None:
    import numpy as np

    fits = np.asarray(sizes)[np.asarray(sizes) >= num_seqs]
    return fits.min() if fits.size else None
