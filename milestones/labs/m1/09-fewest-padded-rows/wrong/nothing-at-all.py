def batches(lengths: list[int]) -> list[list[int]]:
    return []
