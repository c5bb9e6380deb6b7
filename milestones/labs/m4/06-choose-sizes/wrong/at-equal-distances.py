def choose_sizes(seen: list[int], most: int, largest: int) -> list[int]:
    return [largest * n // most for n in range(1, most + 1)]
