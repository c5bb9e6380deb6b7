def batches(lengths: list[int]) -> list[list[int]]:
    return [[number] for number in range(len(lengths))]
