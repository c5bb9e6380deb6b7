def choose_sizes(seen: list[int], most: int, largest: int) -> list[int]:
    return [largest // 2**n for n in range(most)]
