def padded_size(num_seqs: int, sizes: list[int]) -> int | None:
    return next((size for size in sizes if size > num_seqs), None)
